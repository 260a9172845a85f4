// The same elements under another shape, without a copy.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "cadre/tensor.h"

namespace cadre::ops {

/// True, and the view, when a tensor of the given shape can lie on exactly the elements of
/// `tensor`, in the same order.
bool view_as(const TensorView& tensor, const std::array<int64_t, 3>& shape, TensorView* view);

/// "[4, 12] with strides [24, 1]"
std::string shape_and_strides(const TensorView& tensor);
/// "a list of [4, 12] with strides [24, 1]"
std::string shape_and_strides(const GroupedTensor& tensor);

}  // namespace cadre::ops
