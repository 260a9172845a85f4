// route: check, build the Problem, hand over to a backend.
#include "cadre/route.h"

#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/row_dispatch.h"

namespace cadre {
namespace {

using ops::Checker;

void check_index_output(Checker& checker, ops::NamedView output, int64_t slots) {
  const DType dtype = output.view.dtype;
  checker.expect(dtype == DType::kI32 || dtype == DType::kI64, joined(output.argument, ".dtype"),
                 name_of(dtype), "i32 or i64");
  checker.expect(dtype == DType::kI64 || slots <= INT32_MAX, joined(output.argument, ".dtype"),
                 name_of(dtype), "i64 for ", slots, " slots");
}

Status check(const RouteArgs& args, plan::Problem* problem) {
  Checker checker("route");
  const ops::NamedView ids{"expert_ids", args.expert_ids};
  const ops::NamedView sizes{"group_sizes", args.group_sizes};
  const ops::NamedView source{"source_row", args.source_row};
  const ops::NamedView slot{"slot_row", args.slot_row};
  checker.view(ids.argument, ids.view, 2);
  if (!checker.ok()) return checker.status();
  problem->op = plan::Op::kRoute;
  problem->device = args.expert_ids.device;
  const int64_t tokens = args.expert_ids.shape[0];
  const int64_t top_k = args.expert_ids.shape[1];
  checker.expect(is_integer(args.expert_ids.dtype), "expert_ids.dtype",
                 name_of(args.expert_ids.dtype), "an integer type (i8 to i64, u8 to u64)");
  // Devices count rows in 32 bits.
  checker.expect(tokens == 0 || top_k <= UINT32_MAX / tokens, "expert_ids.shape",
                 joined("[", tokens, ", ", top_k, "]"), "fewer than 2^32 slots");
  check_row_operand(checker, sizes, 1, *problem);
  check_row_operand(checker, source, 1, *problem);
  check_row_operand(checker, slot, 2, *problem);
  if (!checker.ok()) return checker.status();
  problem->m = tokens * top_k;
  problem->k = top_k;
  problem->num_groups = problem->num_local_groups = args.group_sizes.shape[0];
  for (const ops::NamedView& output : {sizes, source, slot}) {
    check_index_output(checker, output, problem->m);
  }
  checker.expect(args.source_row.shape[0] == problem->m, "source_row.shape[0]",
                 args.source_row.shape[0], "expert_ids' slots = ", problem->m);
  checker.expect(args.slot_row.shape[0] == tokens && args.slot_row.shape[1] == top_k,
                 "slot_row.shape",
                 joined("[", args.slot_row.shape[0], ", ", args.slot_row.shape[1], "]"),
                 "the shape of expert_ids = [", tokens, ", ", top_k, "]");
  check_options(checker, args.options, problem);
  check_row_memory(checker, {sizes, source, slot}, {ids});
  problem->lhs = ops::layout_of(args.expert_ids);
  problem->out = ops::layout_of(args.source_row);
  return checker.status();
}

}  // namespace

Status route(Context& context, const RouteArgs& args) {
  return ops::guarded("route", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::run_rows(context, problem, &args, args.options);
  });
}

Status route_workspace_size(Context& context, const RouteArgs& args, size_t* size_bytes) {
  return ops::guarded("route", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

}  // namespace cadre
