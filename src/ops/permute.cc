// permute: check, build the Problem, hand over to a backend.
#include "cadre/permute.h"

#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/row_dispatch.h"

namespace cadre {
namespace {

Status check(const PermuteArgs& args, plan::Problem* problem) {
  ops::Checker checker("permute");
  const ops::NamedView x{"x", args.x};
  const ops::NamedView source{"source_row", args.source_row};
  const ops::NamedView slot{"slot_row", args.slot_row};
  const ops::NamedView out{"out", args.out};
  checker.view(x.argument, x.view, 2);
  if (!checker.ok()) return checker.status();
  problem->op = plan::Op::kPermute;
  problem->device = args.x.device;
  check_row_operand(checker, source, 1, *problem);
  check_row_operand(checker, out, 2, *problem);
  if (args.slot_row.given()) check_row_operand(checker, slot, 2, *problem);
  if (!checker.ok()) return checker.status();
  problem->m = args.source_row.shape[0];
  problem->n = args.x.shape[1];
  checker.expect(args.out.dtype == args.x.dtype, "out.dtype", name_of(args.out.dtype),
                 "x.dtype = ", name_of(args.x.dtype));
  checker.expect(args.out.shape[0] == problem->m && args.out.shape[1] == problem->n, "out.shape",
                 joined("[", args.out.shape[0], ", ", args.out.shape[1], "]"),
                 "[source_row's length, x.h] = [", problem->m, ", ", problem->n, "]");
  check_row_indices(checker, source, "x.shape[0]", args.x.shape[0]);
  if (args.slot_row.given()) {
    checker.expect(args.slot_row.shape[0] == args.x.shape[0], "slot_row.shape[0]",
                   args.slot_row.shape[0], "x.shape[0] = ", args.x.shape[0]);
    check_row_indices(checker, slot, "source_row's length", problem->m);
  }
  check_options(checker, args.options, problem);
  check_row_memory(checker, {out}, {x, source, slot});
  problem->lhs = ops::layout_of(args.x);
  problem->out = ops::layout_of(args.out);
  problem->compute = ops::row_compute_dtype({x});
  return checker.status();
}

}  // namespace

Status permute(Context& context, const PermuteArgs& args) {
  return ops::guarded("permute", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::run_rows(context, problem, &args, args.options);
  });
}

Status permute_workspace_size(Context& context, const PermuteArgs& args, size_t* size_bytes) {
  return ops::guarded("permute", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

}  // namespace cadre
