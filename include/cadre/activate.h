// activate: the activation of every row, and its gradient. gmm's epilogue computes the same without
// a pass over memory; these are for everything else.
#pragma once

#include "cadre/activation.h"
#include "cadre/context.h"
#include "cadre/tensor.h"

namespace cadre {

/// out[r] = activation(preact[r]), in f32 (f64 where an operand is f64), rounded once.
struct ActivateArgs {
  TensorView preact{};  ///< [m, 2i] with a gate, else [m, i]
  Activation activation{};
  TensorView out{};  ///< [m, i]
  CallOptions options{};
};

CADRE_API Status activate(Context& context, const ActivateArgs& args);
CADRE_API Status activate_workspace_size(Context& context, const ActivateArgs& args,
                                         size_t* size_bytes);

/// From the gradient of row_scale[r] * activation(preact[r]):
/// d_preact[r] = row_scale[r] * grad[r] * activation'(preact[r])
/// activated[r] = row_scale[r] * activation(preact[r])
/// row_dot[r] = dot(activation(preact[r]), grad[r]), the gradient of row_scale. The activation is
/// not rounded before the dot product, which runs in an order that depends on i alone.
struct ActivateGradArgs {
  TensorView preact{};     ///< [m, 2i] with a gate, else [m, i]
  TensorView grad{};       ///< [m, i]
  TensorView row_scale{};  ///< [m]; default 1
  Activation activation{};
  TensorView d_preact{};   ///< out: the shape of preact, or preact itself, or not given
  TensorView activated{};  ///< out: [m, i], or grad itself, or not given
  TensorView row_dot{};    ///< out: [m], or not given
  CallOptions options{};
};

CADRE_API Status activate_grad(Context& context, const ActivateGradArgs& args);
CADRE_API Status activate_grad_workspace_size(Context& context, const ActivateGradArgs& args,
                                              size_t* size_bytes);

}  // namespace cadre
