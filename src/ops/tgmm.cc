// tgmm: check, build the Problem, hand over to a backend.
#include "cadre/tgmm.h"

#include <algorithm>

#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/problem_of.h"
#include "ops/scaled_operand.h"

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

/// One operand: where its rows come from. Returns how many the product has at most.
int64_t check_rows(Checker& checker, std::string_view argument, const ScaledTensor& operand,
                   const TensorView& index, const plan::Problem& problem, plan::RowSource* source) {
  if (!operand.columns) {
    return check_row_source(checker, argument, operand.shape[0], index, problem, source);
  }
  checker.expect(!index.given(), joined(argument, "_rows"), "given", "none because ", argument,
                 " is a column-wise copy");
  *source = {.rows = operand.shape[1]};
  return operand.shape[1];
}

ops::ScaledOperand scaled_operand(std::string_view argument, const ScaledTensor& operand,
                                  const plan::Problem& problem) {
  return {.argument = argument,
          .scales = operand.scales,
          .dtype = operand.dtype,
          .kind = operand.columns ? ops::ScaledKind::kColumns : ops::ScaledKind::kRows,
          .num_groups = problem.num_groups,
          .outer = operand.columns ? operand.shape[0] : operand.shape[1]};
}

/// FP8: scales along the rows of a group, which is what a column-wise copy has.
void check_scaled(Checker& checker, const TgmmArgs& args, Call* call) {
  plan::Problem& problem = call->problem;
  const auto check_operand = [&](const ops::ScaledOperand& operand, const ScaledTensor& tensor,
                                 plan::ScaleForm* form) {
    const ScaleMode mode = tensor.scales.mode;
    if (is_fp8(tensor.dtype) && mode != ScaleMode::kNone && mode != ScaleMode::kTensor) {
      checker.expect(tensor.columns, joined(operand.argument, ".columns"), "false",
                     "true, the column-wise copy that quantize writes for tgmm, because ",
                     operand.argument, ".scales.mode = ", name_of(mode));
    }
    check_scales(checker, operand, problem.device, form);
    check_column_room(checker, operand, tensor.shape[1], call->operands.host_offsets);
  };
  const ops::ScaledOperand lhs = scaled_operand("lhs", args.lhs, problem);
  const ops::ScaledOperand rhs = scaled_operand("rhs", args.rhs, problem);
  check_operand(lhs, args.lhs, &problem.lhs_scales);
  check_operand(rhs, args.rhs, &problem.rhs_scales);
  check_scale_modes(checker, lhs, rhs);
  call->operands.lhs_scales = args.lhs.scales;
  call->operands.rhs_scales = args.rhs.scales;
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
  const int64_t lhs_m =
      check_rows(checker, "lhs", args.lhs, args.lhs_rows, problem, &problem.lhs_rows);
  const int64_t rhs_m =
      check_rows(checker, "rhs", args.rhs, args.rhs_rows, problem, &problem.rhs_rows);
  problem.k = args.lhs.shape[args.lhs.columns ? 0 : 1];
  problem.n = args.rhs.shape[args.rhs.columns ? 0 : 1];
  problem.num_local_groups = args.out.num_groups;
  if (args.lhs.columns || args.rhs.columns) {
    // A column-wise copy has room for more than its rows, at most how many is all it says.
    problem.m = args.lhs.columns == args.rhs.columns ? std::min(lhs_m, rhs_m)
                : args.lhs.columns                   ? rhs_m
                                                     : lhs_m;
  } else {
    problem.m = lhs_m;
    checker.expect(rhs_m == lhs_m, args.rhs_rows.given() ? "rhs_rows.shape[0]" : "rhs.m", rhs_m,
                   args.lhs_rows.given() ? "lhs_rows.shape[0] = " : "lhs.m = ", lhs_m);
  }
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
  check_scaled(checker, args, call);
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
