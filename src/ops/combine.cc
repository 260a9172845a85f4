// combine and combine_grad: check, build the Problem, hand over to a backend.
#include "cadre/combine.h"

#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/row_dispatch.h"

namespace cadre {
namespace {

using ops::Checker;
using ops::NamedView;

/// A floating-point matrix of shape [rows, cols], if it is given.
struct Expected {
  int64_t rows;
  int64_t cols;
  std::string_view meaning;  ///< "[t, h]"
};
void check_matrix(Checker& checker, NamedView matrix, const Expected& expected,
                  const plan::Problem& problem) {
  if (!matrix.view.given()) return;
  check_row_operand(checker, matrix, 2, problem);
  if (!checker.ok()) return;
  checker.float_dtype(matrix.argument, matrix.view.dtype);
  checker.expect(matrix.view.shape[0] == expected.rows && matrix.view.shape[1] == expected.cols,
                 joined(matrix.argument, ".shape"),
                 joined("[", matrix.view.shape[0], ", ", matrix.view.shape[1], "]"),
                 expected.meaning, " = [", expected.rows, ", ", expected.cols, "]");
}

/// Rank, type and device of the tensors that give the dims: a [*, h] matrix and slot_row.
void check_frame(Checker& checker, NamedView matrix, NamedView slot, plan::Problem* problem) {
  checker.view(matrix.argument, matrix.view, 2);
  if (!checker.ok()) return;
  checker.float_dtype(matrix.argument, matrix.view.dtype);
  problem->device = matrix.view.device;
  problem->n = matrix.view.shape[1];
  check_row_operand(checker, slot, 2, *problem);
  if (checker.ok()) problem->k = slot.view.shape[1];
}

Status check(const CombineArgs& args, plan::Problem* problem) {
  Checker checker("combine");
  const NamedView y{"y", args.y}, slot{"slot_row", args.slot_row}, weights{"weights", args.weights},
      shared{"shared", args.shared}, residual{"residual", args.residual}, out{"out", args.out};
  problem->op = plan::Op::kCombine;
  check_frame(checker, y, slot, problem);
  if (!checker.ok()) return checker.status();
  problem->m = args.y.shape[0];
  const int64_t tokens = args.slot_row.shape[0];
  const Expected row{tokens, problem->n, "[t, h]"};
  check_row_operand(checker, out, 2, *problem);
  check_matrix(checker, out, row, *problem);
  check_matrix(checker, weights, {tokens, problem->k, "the shape of slot_row"}, *problem);
  check_matrix(checker, shared, row, *problem);
  check_matrix(checker, residual, row, *problem);
  check_row_indices(checker, slot, "y.shape[0]", problem->m);
  check_options(checker, args.options, problem);
  check_row_memory(checker, {out}, {y, slot, weights, shared, residual});
  problem->lhs = ops::layout_of(args.y);
  problem->out = ops::layout_of(args.out);
  problem->compute = ops::row_compute_dtype({y, weights, shared, residual, out});
  return checker.status();
}

Status check(const CombineGradArgs& args, plan::Problem* problem) {
  Checker checker("combine_grad");
  const NamedView dout{"dout", args.dout}, slot{"slot_row", args.slot_row},
      source{"source_row", args.source_row}, weights{"weights", args.weights}, y{"y", args.y},
      dy{"dy", args.dy}, dweights{"dweights", args.dweights};
  problem->op = plan::Op::kCombineGrad;
  // Without dout the width is that of any other matrix.
  const NamedView matrix = args.dout.given() ? dout : args.y.given() ? y : dy;
  check_frame(checker, matrix, slot, problem);
  if (!checker.ok()) return checker.status();
  const int64_t tokens = args.slot_row.shape[0];
  if (args.dout.given()) {
    checker.expect(args.dout.shape[0] == tokens, "slot_row.shape[0]", tokens,
                   "dout.shape[0] = ", args.dout.shape[0]);
  }
  if (args.dy.given() && !args.source_row.given()) {
    checker.fail("dy is given without source_row, expected both");
  }
  if (args.dweights.given() && !args.y.given()) {
    checker.fail("dweights is given without y, expected both");
  }
  if (args.source_row.given()) check_row_operand(checker, source, 1, *problem);
  if (!checker.ok()) return checker.status();
  problem->m = args.source_row.given() ? args.source_row.shape[0]
               : args.y.given()        ? args.y.shape[0]
                                       : 0;
  const Expected row{problem->m, problem->n, "[m, h]"};
  const Expected slots{tokens, problem->k, "the shape of slot_row"};
  check_matrix(checker, y, row, *problem);
  check_matrix(checker, dy, row, *problem);
  check_matrix(checker, weights, slots, *problem);
  check_matrix(checker, dweights, slots, *problem);
  if (args.dy.given() || args.dweights.given()) {
    check_row_indices(checker, slot, "m", problem->m);
  }
  if (args.source_row.given()) {
    check_row_indices(checker, source, args.dout.given() ? "dout.shape[0]" : "slot_row.shape[0]",
                      tokens);
  }
  check_options(checker, args.options, problem);
  check_row_memory(checker, {dy, dweights}, {dout, slot, source, weights, y});
  problem->lhs = ops::layout_of(matrix.view);
  problem->out = ops::layout_of(args.dy.given() ? args.dy : args.dweights);
  problem->compute = ops::row_compute_dtype({dout, weights, y, dy, dweights});
  return checker.status();
}

}  // namespace

Status combine(Context& context, const CombineArgs& args) {
  return ops::guarded("combine", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::run_rows(context, problem, &args, args.options);
  });
}

Status combine_workspace_size(Context& context, const CombineArgs& args, size_t* size_bytes) {
  return ops::guarded("combine", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

Status combine_grad(Context& context, const CombineGradArgs& args) {
  return ops::guarded("combine_grad", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    if (!args.dy.given() && !args.dweights.given()) return context.status();
    return ops::run_rows(context, problem, &args, args.options);
  });
}

Status combine_grad_workspace_size(Context& context, const CombineGradArgs& args,
                                   size_t* size_bytes) {
  return ops::guarded("combine_grad", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

}  // namespace cadre
