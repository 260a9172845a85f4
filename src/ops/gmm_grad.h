// gmm_grad: the product of a layer's backward pass and the gradient of its activation, as one op. A
// kernel that has both computes them together (plan/epilogue.h); else they follow each other.
#pragma once

#include <cstddef>

#include "cadre/activate.h"
#include "cadre/gmm.h"
#include "plan/problem.h"

namespace cadre::ops {

/// product.out is what activate_grad takes as `grad`. It holds no defined values afterwards unless
/// it is `activated`, too. Rows of no local group: one kernel writes zeros into every result; two
/// ops leave in `activated` what the activation makes of preact there, which no product reads.
struct GmmGradArgs {
  GmmArgs product{};
  TensorView preact{};
  TensorView row_scale{};
  Activation activation{};
  TensorView d_preact{};  ///< each of these three may be left out
  TensorView activated{};
  TensorView row_dot{};
  CallOptions options{};
};

Status gmm_grad(Context& context, const GmmGradArgs& args);
Status gmm_grad_workspace_size(Context& context, const GmmGradArgs& args, size_t* size_bytes);

/// As in ops/problem_of.h: the problem of the one kernel, which gmm_grad poses first.
Status problem_of(const GmmGradArgs& args, plan::Problem* problem);

}  // namespace cadre::ops
