// activate and activate_grad: check, build the Problem, hand over to a backend.
#include "cadre/activate.h"

#include "ops/activation_check.h"
#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/memory_span.h"
#include "ops/problem_of.h"
#include "ops/row_dispatch.h"

namespace cadre {
namespace {

using ops::Checker;
using ops::NamedView;

/// Device, rows and width come from `preact`.
void check_preact(Checker& checker, NamedView preact, const Activation& activation,
                  plan::Problem* problem) {
  checker.view(preact.argument, preact.view, 2);
  if (!checker.ok()) return;
  checker.float_dtype(preact.argument, preact.view.dtype);
  check_activation(checker, activation);
  ops::check_gate_width(checker, "preact.shape[1]", preact.view.shape[1], activation);
  if (!checker.ok()) return;
  problem->device = preact.view.device;
  problem->m = preact.view.shape[0];
  problem->n = preact.view.shape[1] / activation.columns();
  problem->lhs = ops::layout_of(preact.view);
}

/// [m, cols] of floating-point numbers.
void check_rows(Checker& checker, NamedView rows, std::string_view meaning, int64_t cols,
                const plan::Problem& problem) {
  check_row_operand(checker, rows, 2, problem);
  if (!checker.ok()) return;
  checker.float_dtype(rows.argument, rows.view.dtype);
  checker.expect(rows.view.shape[0] == problem.m && rows.view.shape[1] == cols,
                 joined(rows.argument, ".shape"),
                 joined("[", rows.view.shape[0], ", ", rows.view.shape[1], "]"), meaning, " = [",
                 problem.m, ", ", cols, "]");
}

/// A number for each row, if it is given.
void check_vector(Checker& checker, NamedView vector, const plan::Problem& problem) {
  if (!vector.view.given()) return;
  check_row_operand(checker, vector, 1, problem);
  if (!checker.ok()) return;
  checker.float_dtype(vector.argument, vector.view.dtype);
  checker.expect(vector.view.shape[0] == problem.m, joined(vector.argument, ".shape[0]"),
                 vector.view.shape[0], "preact.shape[0] = ", problem.m);
}

Status check(const ActivateArgs& args, plan::Problem* problem) {
  Checker checker("activate");
  const NamedView preact{"preact", args.preact}, out{"out", args.out};
  problem->op = plan::Op::kActivate;
  check_preact(checker, preact, args.activation, problem);
  check_rows(checker, out, "[m, i]", problem->n, *problem);
  check_options(checker, args.options, problem);
  check_row_memory(checker, {out}, {preact});
  problem->out = ops::layout_of(args.out);
  problem->compute = ops::row_compute_dtype({preact, out});
  return checker.status();
}

Status check(const ActivateGradArgs& args, plan::Problem* problem) {
  Checker checker("activate_grad");
  const NamedView preact{"preact", args.preact}, grad{"grad", args.grad},
      row_scale{"row_scale", args.row_scale}, d_preact{"d_preact", args.d_preact},
      activated{"activated", args.activated}, row_dot{"row_dot", args.row_dot};
  problem->op = plan::Op::kActivateGrad;
  check_preact(checker, preact, args.activation, problem);
  check_rows(checker, grad, "[m, i]", problem->n, *problem);
  check_vector(checker, row_scale, *problem);
  if (args.d_preact.given()) {
    check_rows(checker, d_preact, "the shape of preact", problem->n * args.activation.columns(),
               *problem);
  }
  if (args.activated.given()) check_rows(checker, activated, "[m, i]", problem->n, *problem);
  check_vector(checker, row_dot, *problem);
  check_options(checker, args.options, problem);
  // Each element of these pairs is read before it is written.
  const TensorView none{};
  check_row_memory(checker, {d_preact, activated, row_dot},
                   {{"preact", ops::same_elements(args.d_preact, args.preact) ? none : args.preact},
                    {"grad", ops::same_elements(args.activated, args.grad) ? none : args.grad},
                    row_scale});
  problem->out = ops::layout_of(args.d_preact.given() ? args.d_preact : args.activated);
  problem->compute =
      ops::row_compute_dtype({preact, grad, row_scale, d_preact, activated, row_dot});
  return checker.status();
}

}  // namespace

Status activate(Context& context, const ActivateArgs& args) {
  return ops::guarded("activate", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::run_rows(context, problem, &args, args.options);
  });
}

Status activate_workspace_size(Context& context, const ActivateArgs& args, size_t* size_bytes) {
  return ops::guarded("activate", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

Status ops::problem_of(const ActivateGradArgs& args, plan::Problem* problem) {
  return check(args, problem);
}

Status activate_grad(Context& context, const ActivateGradArgs& args) {
  return ops::guarded("activate_grad", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    const bool asked = args.d_preact.given() || args.activated.given() || args.row_dot.given();
    if (!asked) return context.status();
    return ops::run_rows(context, problem, &args, args.options);
  });
}

Status activate_grad_workspace_size(Context& context, const ActivateGradArgs& args,
                                    size_t* size_bytes) {
  return ops::guarded("activate_grad", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

}  // namespace cadre
