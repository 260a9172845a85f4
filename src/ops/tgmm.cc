// tgmm: check, build the Problem, hand over to a backend.
#include "cadre/tgmm.h"

#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/problem_of.h"

namespace cadre {
namespace {

using ops::Call;
using ops::Checker;

/// out or c: one [k, n] matrix for each local group.
void check_result(Checker& checker, std::string_view argument, const GroupedTensor& tensor,
                  const plan::Problem& problem) {
  checker.grouped(argument, tensor, {Placement::kStacked, Placement::kList});
  if (!checker.ok()) return;
  checker.expect(!tensor.rows.varies() && !tensor.cols.varies(), joined(argument, ".rows"),
                 "per-group", "one shape for all groups");
  checker.expect(tensor.rows.uniform == problem.k, joined(argument, ".k"), tensor.rows.uniform,
                 "lhs.k = ", problem.k);
  checker.expect(tensor.cols.uniform == problem.n, joined(argument, ".n"), tensor.cols.uniform,
                 "rhs.n = ", problem.n);
  checker.expect(tensor.num_groups == problem.num_local_groups, joined(argument, ".num_groups"),
                 tensor.num_groups, "out.num_groups = ", problem.num_local_groups);
}

Status check(const TgmmArgs& args, Call* call) {
  Checker checker("tgmm");
  plan::Problem& problem = call->problem;
  plan::Operands& operands = call->operands;

  checker.view("lhs", args.lhs, 2);
  checker.view("rhs", args.rhs, 2);
  if (!checker.ok()) return checker.status();
  problem.op = plan::Op::kTgmm;
  problem.device = args.lhs.device;
  problem.m = check_row_source(checker, "lhs", args.lhs.shape[0], args.lhs_rows, problem,
                               &problem.lhs_rows);
  const int64_t rhs_m = check_row_source(checker, "rhs", args.rhs.shape[0], args.rhs_rows, problem,
                                         &problem.rhs_rows);
  problem.k = args.lhs.shape[1];
  problem.n = args.rhs.shape[1];
  problem.num_local_groups = args.out.num_groups;
  checker.expect(rhs_m == problem.m, args.rhs_rows.given() ? "rhs_rows.shape[0]" : "rhs.m", rhs_m,
                 args.lhs_rows.given() ? "lhs_rows.shape[0] = " : "lhs.m = ", problem.m);
  checker.same_device("rhs", args.rhs.device, "lhs", problem.device);
  check_result(checker, "out", args.out, problem);
  checker.same_device("out", args.out.device, "lhs", problem.device);
  checker.product_dtypes({"lhs", args.lhs.dtype}, {"rhs", args.rhs.dtype}, {"out", args.out.dtype});
  if (!checker.ok()) return checker.status();

  operands.lhs = args.lhs;
  operands.lhs_index = args.lhs_rows;
  operands.rhs = args.rhs;
  operands.rhs_index = args.rhs_rows;
  operands.out = args.out;
  operands.group_sizes = args.group_sizes;
  operands.group_offset = args.group_offset;
  check_sizes(checker, args.group_sizes, args.group_offset, Tail::kZero, &problem,
              &operands.host_offsets);
  checker.pointers("out", args.out);
  if (args.c.given()) check_result(checker, "c", args.c, problem);
  checker.pointers("c", args.c);
  check_scalars(checker, {args.alpha, args.beta, args.accumulate, args.c}, call);
  check_options(checker, args.options, &problem);
  check_overlaps(checker, *call, "out");
  if (!checker.ok()) return checker.status();

  problem.lhs = ops::layout_of(args.lhs);
  problem.rhs = ops::layout_of(args.rhs);
  problem.out = ops::layout_of(args.out);
  problem.compute = ops::compute_dtype(args.lhs.dtype, args.rhs.dtype, args.out.dtype);
  // m = 0 still writes beta * c.
  call->nothing_to_do = problem.num_local_groups == 0 || problem.k == 0 || problem.n == 0;
  return {};
}

}  // namespace

Status tgmm(Context& context, const TgmmArgs& args) {
  return ops::guarded("tgmm", [&]() -> Status {
    Call call;
    if (Status status = check(args, &call); !status.ok()) return status;
    return ops::run(context, call, args.options);
  });
}

Status tgmm_workspace_size(Context& context, const TgmmArgs& args, size_t* size_bytes) {
  return ops::guarded("tgmm", [&]() -> Status {
    Call call;
    if (Status status = check(args, &call); !status.ok()) return status;
    return ops::workspace_size(context, call, args.options, size_bytes);
  });
}

Status ops::problem_of(const TgmmArgs& args, plan::Problem* problem) {
  Call call;
  if (Status status = check(args, &call); !status.ok()) return status;
  *problem = call.problem;
  return {};
}

}  // namespace cadre
