// GroupedLinear: checks everything, then calls gmm, tgmm and bias_grad.
#include "cadre/grouped_linear.h"

#include <algorithm>

#include "cadre/bias_grad.h"
#include "ops/checker.h"
#include "ops/memory_span.h"
#include "ops/view_as.h"

namespace cadre {
namespace {

using ops::Checker;
using ops::shape_and_strides;

constexpr std::string_view kName = "grouped_linear";

/// The error of one of the ops, with the layer's name for it in front.
Status within(std::string_view what, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), text(kName, ": ", what, ": ", status.message())};
}

struct Dims {
  int64_t m, k, n, num_groups;
};

void check_parameters(Checker& checker, const GroupedLinearParameters& parameters) {
  const GroupedTensor& weight = parameters.weight;
  checker.grouped("weight", weight, {Placement::kStacked, Placement::kList});
  if (!checker.ok()) return;
  checker.expect(!weight.rows.varies() && !weight.cols.varies(), "weight.rows", "per-group",
                 "one shape for all groups");
  if (!parameters.bias.given()) return;
  const GroupedTensor& bias = parameters.bias;
  checker.vectors("bias", bias);
  if (!checker.ok()) return;
  checker.expect(bias.num_groups == weight.num_groups, "bias.num_groups", bias.num_groups,
                 "weight.num_groups = ", weight.num_groups);
  checker.expect(!bias.cols.varies() && bias.cols.uniform == weight.rows.uniform, "bias.n",
                 bias.cols.uniform, "weight.n = ", weight.rows.uniform);
}

/// A row-shaped tensor [m, cols].
void check_rows(Checker& checker, std::string_view argument, const TensorView& view, int64_t m,
                int64_t cols) {
  checker.view(argument, view, 2);
  if (!checker.ok()) return;
  checker.expect(view.shape[0] == m && view.shape[1] == cols, argument, shape_and_strides(view),
                 "[", m, ", ", cols, "]");
}

void check_vector(Checker& checker, std::string_view argument, const TensorView& view, int64_t m) {
  checker.view(argument, view, 1);
  if (!checker.ok()) return;
  checker.expect(view.shape[0] == m, joined(argument, ".shape[0]"), view.shape[0], "x.m = ", m);
}

GmmArgs forward_op(const GroupedLinearParameters& parameters,
                   const GroupedLinearForwardArgs& args) {
  return {.lhs = args.x,
          .rhs = parameters.weight,
          .group_sizes = args.splits,
          .out = args.y,
          .transpose_rhs = true,
          .bias = parameters.bias,
          .bias_scale = args.scales,
          .tail = args.tail,
          .group_offset = args.group_offset,
          .options = args.options};
}

Status check_forward(Context& context, const GroupedLinearParameters& parameters,
                     const GroupedLinearForwardArgs& args, size_t* workspace_bytes) {
  Checker checker(kName);
  check_parameters(checker, parameters);
  checker.view("x", args.x, 2);
  if (!checker.ok()) return checker.status();
  const int64_t k = args.x.shape[1];
  checker.expect(parameters.weight.cols.uniform == k, "weight.k", parameters.weight.cols.uniform,
                 "x.k = ", k);
  check_rows(checker, "y", args.y, args.x.shape[0], parameters.weight.rows.uniform);
  if (args.scales.given()) {
    checker.expect(parameters.bias.given(), "scales", "given", "none because there is no bias");
    check_vector(checker, "scales", args.scales, args.x.shape[0]);
  }
  if (!checker.ok()) return checker.status();
  return within("y", gmm_workspace_size(context, forward_op(parameters, args), workspace_bytes));
}

/// The ops of a backward pass, checked; which of them are asked for.
struct BackwardPlan {
  GmmArgs dx{};
  TgmmArgs dweight{};
  BiasGradArgs bias_grad{};
  bool wants_dx = false;
  bool wants_dweight = false;
  bool wants_bias_grad = false;
};

void check_weight_grad(Checker& checker, std::string_view argument, const GroupedTensor& tensor,
                       const Dims& dims) {
  checker.grouped(argument, tensor, {Placement::kStacked, Placement::kList});
  if (!checker.ok()) return;
  checker.expect(tensor.num_groups == dims.num_groups, joined(argument, ".num_groups"),
                 tensor.num_groups, "weight.num_groups = ", dims.num_groups);
  checker.expect(!tensor.rows.varies() && !tensor.cols.varies() && tensor.rows.uniform == dims.n &&
                     tensor.cols.uniform == dims.k,
                 argument, shape_and_strides(tensor), "matrices of [", dims.n, ", ", dims.k, "]");
}

/// Where the weight gradient goes, and what is kept there; absent when it isn't asked for.
void choose_weight_grad(Checker& checker, const GroupedLinearOptions& options,
                        const GroupedLinearBackwardArgs& args, const Dims& dims,
                        BackwardPlan* plan) {
  if (!options.accumulate_into_main_grad) {
    checker.expect(!args.main_grad.given(), "main_grad", "given",
                   "none without accumulate_into_main_grad");
    if (args.dweight.given()) check_weight_grad(checker, "dweight", args.dweight, dims);
    plan->wants_dweight = args.dweight.given();
    plan->dweight.out = args.dweight;
    plan->dweight.beta = args.dweight_beta;
    return;
  }
  checker.expect(!args.dweight.given(), "dweight", "given",
                 "none because accumulate_into_main_grad is set");
  checker.expect(args.main_grad.given(), "main_grad", "nothing", "a tensor viewable as [",
                 dims.num_groups, ", ", dims.n, ", ", dims.k, "], or a list of [", dims.n, ", ",
                 dims.k, "]");
  if (!checker.ok()) return;
  plan->wants_dweight = true;
  plan->dweight.beta = args.main_grad_beta;
  if (args.main_grad.list.given()) {
    plan->dweight.out = args.main_grad.list;
    check_weight_grad(checker, "main_grad", plan->dweight.out, dims);
    return;
  }
  TensorView view;
  const bool viewable =
      ops::view_as(args.main_grad.tensor, {dims.num_groups, dims.n, dims.k}, &view);
  checker.expect(viewable, "main_grad", shape_and_strides(args.main_grad.tensor),
                 "a tensor viewable as [", dims.num_groups, ", ", dims.n, ", ", dims.k, "]");
  plan->dweight.out = view;
}

/// The ops run one after the other: no result may lie where another op reads or writes.
void check_memory(Checker& checker, const GroupedLinearParameters& parameters,
                  const GroupedLinearSaved& saved, const GroupedLinearBackwardArgs& args,
                  const BackwardPlan& plan) {
  if (!checker.ok()) return;
  const std::string_view weight_grad = args.main_grad.given() ? "main_grad" : "dweight";
  std::vector<ops::NamedSpans> outputs = {{"dx", ops::spans_of(args.dx)},
                                          {weight_grad, ops::spans_of(plan.dweight.out)},
                                          {"dbias", ops::spans_of(args.dbias)},
                                          {"dscales", ops::spans_of(args.dscales)}};
  std::vector<ops::NamedSpans> others = {
      {"x", ops::spans_of(saved.x)},
      {"dy", ops::spans_of(args.dy)},
      {"weight", ops::spans_of(parameters.weight)},
      {"bias", ops::spans_of(parameters.bias)},
      {"scales", ops::spans_of(saved.scales)},
      {"splits", ops::spans_of(TensorView::contiguous(saved.splits.data, saved.splits.dtype,
                                                      {saved.splits.count}))}};
  for (const ops::NamedSpans& output : outputs) {
    ops::check_overlap(checker, output.argument, output.spans, others);
    others.push_back(output);
  }
}

Status plan_backward(const GroupedLinearParameters& parameters, const GroupedLinearOptions& options,
                     const GroupedLinearSaved& saved, const GroupedLinearBackwardArgs& args,
                     BackwardPlan* plan) {
  Checker checker(kName);
  check_parameters(checker, parameters);
  checker.expect(saved.x.given(), "saved.x", "nothing", "what forward() saved");
  checker.view("saved.x", saved.x, 2);
  if (!checker.ok()) return checker.status();
  const Dims dims{saved.x.shape[0], parameters.weight.cols.uniform, parameters.weight.rows.uniform,
                  parameters.weight.num_groups};
  check_rows(checker, "saved.x", saved.x, dims.m, dims.k);
  check_rows(checker, "dy", args.dy, dims.m, dims.n);
  if (args.dx.given()) check_rows(checker, "dx", args.dx, dims.m, dims.k);
  choose_weight_grad(checker, options, args, dims, plan);
  if (args.dbias.given()) {
    checker.expect(parameters.bias.given(), "dbias", "given", "none because there is no bias");
  }
  if (args.dscales.given()) {
    checker.expect(saved.scales.given(), "dscales", "given",
                   "none because forward() had no scales");
    check_vector(checker, "dscales", args.dscales, dims.m);
  }
  check_memory(checker, parameters, saved, args, *plan);
  if (!checker.ok()) return checker.status();

  plan->wants_dx = args.dx.given();
  plan->dx = {.lhs = args.dy,
              .rhs = parameters.weight,
              .group_sizes = saved.splits,
              .out = args.dx,
              .group_offset = saved.group_offset,
              .options = args.options};
  plan->dweight.lhs = args.dy;
  plan->dweight.rhs = saved.x;
  plan->dweight.group_sizes = saved.splits;
  plan->dweight.group_offset = saved.group_offset;
  plan->dweight.options = args.options;
  plan->wants_bias_grad = args.dbias.given() || args.dscales.given();
  plan->bias_grad = {.dy = args.dy,
                     .group_sizes = saved.splits,
                     .dbias = args.dbias,
                     .dbias_scale = args.dscales,
                     .bias = parameters.bias,
                     .bias_scale = saved.scales,
                     .accumulate = args.accumulate_dbias,
                     .group_offset = saved.group_offset,
                     .options = args.options};
  return {};
}

/// Asks every op that will run for its workspace: its checks and its choice of a kernel included.
Status check_ops(Context& context, const BackwardPlan& plan, size_t* workspace_bytes) {
  size_t needed = 0;
  *workspace_bytes = 0;
  const auto take = [&](std::string_view what, const Status& status) {
    *workspace_bytes = std::max(*workspace_bytes, needed);
    return within(what, status);
  };
  Status status;
  if (plan.wants_dx) status = take("dx", gmm_workspace_size(context, plan.dx, &needed));
  if (status.ok() && plan.wants_dweight) {
    status = take("dweight", tgmm_workspace_size(context, plan.dweight, &needed));
  }
  if (status.ok() && plan.wants_bias_grad) {
    status = take("dbias", bias_grad_workspace_size(context, plan.bias_grad, &needed));
  }
  return status;
}

}  // namespace

GroupedLinear::GroupedLinear(const GroupedLinearParameters& parameters,
                             const GroupedLinearOptions& options)
    : parameters_(parameters), options_(options) {}

Status GroupedLinear::forward(Context& context, const GroupedLinearForwardArgs& args,
                              GroupedLinearSaved* saved) {
  size_t workspace_bytes = 0;
  Status status = check_forward(context, parameters_, args, &workspace_bytes);
  if (!status.ok()) return status;
  status = within("y", gmm(context, forward_op(parameters_, args)));
  if (status.ok() && saved != nullptr) {
    *saved = {.x = args.x,
              .splits = args.splits,
              .group_offset = args.group_offset,
              .scales = args.scales};
  }
  return status;
}

Status GroupedLinear::backward(Context& context, const GroupedLinearSaved& saved,
                               const GroupedLinearBackwardArgs& args) {
  BackwardPlan plan;
  size_t workspace_bytes = 0;
  Status status = plan_backward(parameters_, options_, saved, args, &plan);
  if (status.ok()) status = check_ops(context, plan, &workspace_bytes);
  if (status.ok() && plan.wants_dx) status = within("dx", gmm(context, plan.dx));
  if (status.ok() && plan.wants_bias_grad) {
    status = within("dbias", bias_grad(context, plan.bias_grad));
  }
  if (!status.ok() || !plan.wants_dweight) return status;
  if (!options_.delay_wgrad) return within("dweight", tgmm(context, plan.dweight));
  pending_.push_back(plan.dweight);
  return status;
}

Status GroupedLinear::backward_dw(Context& context, const CallOptions& options) {
  if (pending_.empty()) return {};
  TgmmArgs dweight = pending_.front();
  pending_.pop_front();
  dweight.options = options;
  return within("dweight", tgmm(context, dweight));
}

Status GroupedLinear::forward_workspace_size(Context& context, const GroupedLinearForwardArgs& args,
                                             size_t* size_bytes) const {
  return check_forward(context, parameters_, args, size_bytes);
}

Status GroupedLinear::backward_workspace_size(Context& context, const GroupedLinearSaved& saved,
                                              const GroupedLinearBackwardArgs& args,
                                              size_t* size_bytes) const {
  BackwardPlan plan;
  Status status = plan_backward(parameters_, options_, saved, args, &plan);
  return status.ok() ? check_ops(context, plan, size_bytes) : status;
}

}  // namespace cadre
