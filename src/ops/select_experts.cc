// select_experts and its gradient: check, build the Problem, hand over to a backend.
#include "cadre/select_experts.h"

#include "ops/dispatch.h"
#include "ops/guarded.h"
#include "ops/row_dispatch.h"

namespace cadre {
namespace {

using ops::Checker;
using ops::NamedView;

void check_selection(Checker& checker, const ExpertSelection& selection) {
  const auto score = static_cast<int32_t>(selection.score);
  checker.expect(score == 0 || score == 1, "selection.score", score, "0 (softmax) or 1 (sigmoid)");
}

/// The tensors that both directions have. `slots` is [t, top_k] of floating-point numbers.
void check_frame(Checker& checker, NamedView logits, NamedView ids, NamedView slots,
                 plan::Problem* problem) {
  checker.view(logits.argument, logits.view, 2);
  if (!checker.ok()) return;
  checker.float_dtype(logits.argument, logits.view.dtype);
  problem->device = logits.view.device;
  check_row_operand(checker, ids, 2, *problem);
  check_row_operand(checker, slots, 2, *problem);
  if (!checker.ok()) return;
  checker.float_dtype(slots.argument, slots.view.dtype);
  problem->m = logits.view.shape[0];
  problem->n = logits.view.shape[1];
  problem->k = ids.view.shape[1];
  for (const NamedView& named : {ids, slots}) {
    checker.expect(named.view.shape[0] == problem->m && named.view.shape[1] == problem->k,
                   joined(named.argument, ".shape"),
                   joined("[", named.view.shape[0], ", ", named.view.shape[1], "]"),
                   "[logits.shape[0], top_k] = [", problem->m, ", ", problem->k, "]");
  }
  checker.expect(problem->k <= problem->n, joined(ids.argument, ".shape[1]"), problem->k,
                 "at most the number of experts = ", problem->n);
}

void check_groups(Checker& checker, const SelectExpertsArgs& args, const plan::Problem& problem) {
  const auto group_score = static_cast<int32_t>(args.group_score);
  checker.expect(group_score == 0 || group_score == 1, "group_score", group_score,
                 "0 (max) or 1 (top two)");
  checker.expect(args.num_groups >= 1 && args.num_groups <= std::max<int64_t>(problem.n, 1) &&
                     problem.n % args.num_groups == 0,
                 "num_groups", args.num_groups, "a divisor of the number of experts = ", problem.n);
  checker.expect(args.top_groups >= 1 && args.top_groups <= args.num_groups, "top_groups",
                 args.top_groups, "1 to num_groups = ", args.num_groups);
  if (!checker.ok()) return;
  const int64_t open = problem.n / args.num_groups * args.top_groups;
  checker.expect(problem.k <= open, "expert_ids.shape[1]", problem.k,
                 "at most the experts of top_groups groups = ", open);
}

Status check(const SelectExpertsArgs& args, plan::Problem* problem) {
  Checker checker("select_experts");
  const NamedView logits{"logits", args.logits}, bias{"correction_bias", args.correction_bias},
      ids{"expert_ids", args.expert_ids}, weights{"weights", args.weights};
  problem->op = plan::Op::kSelectExperts;
  check_frame(checker, logits, ids, weights, problem);
  if (!checker.ok()) return checker.status();
  checker.expect(args.expert_ids.dtype == DType::kI32 || args.expert_ids.dtype == DType::kI64,
                 "expert_ids.dtype", name_of(args.expert_ids.dtype), "i32 or i64");
  if (args.correction_bias.given()) {
    check_row_operand(checker, bias, 1, *problem);
    checker.float_dtype(bias.argument, bias.view.dtype);
    checker.expect(bias.view.shape[0] == problem->n, "correction_bias.shape[0]", bias.view.shape[0],
                   "the number of experts = ", problem->n);
  }
  check_selection(checker, args.selection);
  check_groups(checker, args, *problem);
  check_options(checker, args.options, problem);
  check_row_memory(checker, {ids, weights}, {logits, bias});
  problem->num_groups = problem->num_local_groups = args.num_groups;
  problem->lhs = ops::layout_of(args.logits);
  problem->out = ops::layout_of(args.weights);
  problem->compute = ops::row_compute_dtype({logits});
  return checker.status();
}

Status check(const SelectExpertsGradArgs& args, plan::Problem* problem) {
  Checker checker("select_experts_grad");
  const NamedView logits{"logits", args.logits}, ids{"expert_ids", args.expert_ids},
      dweights{"dweights", args.dweights}, dlogits{"dlogits", args.dlogits};
  problem->op = plan::Op::kSelectExpertsGrad;
  check_frame(checker, logits, ids, dweights, problem);
  check_row_operand(checker, dlogits, 2, *problem);
  if (!checker.ok()) return checker.status();
  checker.float_dtype("dlogits", args.dlogits.dtype);
  checker.expect(args.dlogits.shape[0] == problem->m && args.dlogits.shape[1] == problem->n,
                 "dlogits.shape",
                 joined("[", args.dlogits.shape[0], ", ", args.dlogits.shape[1], "]"),
                 "the shape of logits = [", problem->m, ", ", problem->n, "]");
  check_selection(checker, args.selection);
  check_row_indices(checker, ids, "logits.shape[1]", problem->n);
  check_options(checker, args.options, problem);
  check_row_memory(checker, {dlogits}, {logits, ids, dweights});
  problem->lhs = ops::layout_of(args.logits);
  problem->out = ops::layout_of(args.dlogits);
  problem->compute = ops::row_compute_dtype({logits});
  return checker.status();
}

}  // namespace

Status select_experts(Context& context, const SelectExpertsArgs& args) {
  return ops::guarded("select_experts", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    if (problem.m == 0 || problem.k == 0) return context.status();
    return ops::run_rows(context, problem, &args, args.options);
  });
}

Status select_experts_workspace_size(Context& context, const SelectExpertsArgs& args,
                                     size_t* size_bytes) {
  return ops::guarded("select_experts", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

Status select_experts_grad(Context& context, const SelectExpertsGradArgs& args) {
  return ops::guarded("select_experts_grad", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::run_rows(context, problem, &args, args.options);
  });
}

Status select_experts_grad_workspace_size(Context& context, const SelectExpertsGradArgs& args,
                                          size_t* size_bytes) {
  return ops::guarded("select_experts_grad", [&]() -> Status {
    plan::Problem problem;
    if (Status status = check(args, &problem); !status.ok()) return status;
    return ops::rows_workspace_size(context, problem, args.options, size_bytes);
  });
}

}  // namespace cadre
