// gmm_grad: both ops' checks, then one kernel or two ops.
#include "ops/gmm_grad.h"

#include <algorithm>

#include "backend/registry.h"
#include "ops/guarded.h"
#include "ops/memory_span.h"
#include "ops/problem_of.h"

namespace cadre::ops {
namespace {

/// What activate_grad would be called with.
ActivateGradArgs gradient_of(const GmmGradArgs& args) {
  const GroupedTensor& out = args.product.out;
  const TensorView result =
      TensorView::strided(out.data, out.dtype, {out.rows.uniform, out.cols.uniform},
                          {out.row_stride, out.col_stride}, out.device);
  return {.preact = args.preact,
          .grad = result,
          .row_scale = args.row_scale,
          .activation = args.activation,
          .d_preact = args.d_preact,
          .activated = args.activated,
          .row_dot = args.row_dot,
          .options = args.options};
}

GmmArgs product_of(const GmmGradArgs& args) {
  GmmArgs product = args.product;
  product.options = args.options;
  return product;
}

/// Both ops' checks, and the call that one kernel would be given.
Status fused_call(const GmmGradArgs& args, Call* call) {
  plan::Problem pass;
  if (Status status = problem_of(gradient_of(args), &pass); !status.ok()) return status;
  if (Status status = call_of(product_of(args), call); !status.ok()) return status;
  call->problem.epilogue.gradient = {
      .activation = args.activation,
      .preact = layout_of(args.preact),
      .d_preact = args.d_preact.given() ? layout_of(args.d_preact) : plan::OperandLayout{},
      .row_scale = args.row_scale.given() ? args.row_scale.dtype : DType::kF32,
      .row_dot = args.row_dot.given() ? args.row_dot.dtype : DType::kF32,
      .has_row_dot = args.row_dot.given()};
  call->operands.epilogue.gradient = {.activation = args.activation,
                                      .preact = args.preact,
                                      .row_scale = args.row_scale,
                                      .d_preact = args.d_preact,
                                      .row_dot = args.row_dot};
  return {};
}

/// The call of one kernel, and its choice; none where no kernel computes both.
struct Fused {
  Call call;
  backend::Selection selection;
  bool found = false;
};

Status find_fused(Context& context, const GmmGradArgs& args, Fused* fused) {
  if (Status status = fused_call(args, &fused->call); !status.ok()) return status;
  const plan::Problem& problem = fused->call.problem;
  const bool plain = args.activation.kind == ActivationKind::kNone || problem.epilogue.activates();
  const bool apart =
      args.activated.given() && !same_elements(args.activated, gradient_of(args).grad);
  if (plain || apart || fused->call.nothing_to_do || !context.status().ok()) return {};
  const Status status = backend::Registry::instance().select(
      context.state(), problem, args.options.config, &fused->selection);
  fused->found = status.ok();
  return status.code() == StatusCode::kUnsupported ? Status{} : status;
}

}  // namespace

Status gmm_grad(Context& context, const GmmGradArgs& args) {
  return guarded("gmm", [&]() -> Status {
    Fused fused;
    if (Status status = find_fused(context, args, &fused); !status.ok()) return status;
    if (fused.found) {
      return fused.selection.backend->run(context.state(), fused.call.problem,
                                          fused.selection.config, fused.call.operands,
                                          args.options);
    }
    if (Status status = gmm(context, product_of(args)); !status.ok()) return status;
    return activate_grad(context, gradient_of(args));
  });
}

Status gmm_grad_workspace_size(Context& context, const GmmGradArgs& args, size_t* size_bytes) {
  return guarded("gmm", [&]() -> Status {
    Fused fused;
    if (Status status = find_fused(context, args, &fused); !status.ok()) return status;
    if (fused.found) {
      *size_bytes =
          fused.selection.backend->workspace_size(fused.call.problem, fused.selection.config);
      return {};
    }
    size_t product = 0;
    size_t pass = 0;
    Status status = gmm_workspace_size(context, product_of(args), &product);
    if (status.ok()) status = activate_grad_workspace_size(context, gradient_of(args), &pass);
    *size_bytes = std::max(product, pass);
    return status;
  });
}

Status problem_of(const GmmGradArgs& args, plan::Problem* problem) {
  Call call;
  if (Status status = fused_call(args, &call); !status.ok()) return status;
  *problem = call.problem;
  return {};
}

}  // namespace cadre::ops
