// bias_grad: gradients of gmm's bias and bias_scale from the gradient of its output.
#pragma once

#include "cadre/context.h"
#include "cadre/tensor.h"

namespace cadre {

/// dbias[i] = sum over rows r of group i of bias_scale[r] * dy[r]
/// dbias_scale[r] = dot(dy[r], bias[group(r)]); zero in tail and foreign rows, where dy is not
/// read. Sums run in f32 (f64 where an operand is f64), in ascending row and column order.
struct BiasGradArgs {
  TensorView dy{};  ///< [m, n]
  GroupSizes group_sizes{};
  GroupedTensor dbias{};     ///< [g, n] (GroupedTensor::vectors), or not given
  TensorView dbias_scale{};  ///< [m], or not given; needs bias
  GroupedTensor bias{};      ///< [g, n]
  TensorView bias_scale{};   ///< [m]; default 1
  bool accumulate = false;   ///< add to dbias instead of replacing it (dbias_scale is replaced)
  GroupOffset group_offset = 0;
  CallOptions options{};
};

CADRE_API Status bias_grad(Context& context, const BiasGradArgs& args);
CADRE_API Status bias_grad_workspace_size(Context& context, const BiasGradArgs& args,
                                          size_t* size_bytes);

}  // namespace cadre
