// The compiled instantiations of the kernels, by element type; one source file for each keeps
// builds parallel.
#pragma once

#include <cstddef>

#include "cuda/sm90/arguments.h"
#include "cuda/sm90/shapes.h"

namespace cadre::sm90 {

template <typename Arguments>
struct Instance {
  void (*kernel)(Arguments) = nullptr;
  size_t shared_bytes = 0;
  bool streams = false;  ///< Traits::kStreams
  ActivationForm activation = ActivationForm::kNone;
  ActivationForm gradient_of = ActivationForm::kNone;
};
using GmmInstance = Instance<GmmArguments>;
using TgmmInstance = Instance<TgmmArguments>;
using GroupedInstance = Instance<GroupedArguments>;

/// How grouped_gemm's operands are stored.
struct GroupedOrder {
  bool a_along_k = false;  ///< rows of k elements: A without transa
  bool b_along_k = false;  ///< B with transb
};

GmmInstance gmm_instance_bf16(bool transposed_rhs, GmmShapeKind shape);
GmmInstance gmm_instance_f16(bool transposed_rhs, GmmShapeKind shape);
// Shapes with the gradient of an activation.
GmmInstance gradient_instance_bf16(bool transposed_rhs, GmmShapeKind shape);
GmmInstance gradient_instance_f16(bool transposed_rhs, GmmShapeKind shape);
// rhs [g, n, k]; named after lhs x rhs.
GmmInstance gmm_instance_e4m3_e4m3(GmmShapeKind shape);
GmmInstance gmm_instance_e4m3_e5m2(GmmShapeKind shape);
GmmInstance gmm_instance_e5m2_e4m3(GmmShapeKind shape);
TgmmInstance tgmm_instance_bf16(bool reads_c);
TgmmInstance tgmm_instance_f16(bool reads_c);
// Both along k.
GroupedInstance grouped_instance_e4m3_e4m3(GroupedShapeKind shape);
GroupedInstance grouped_instance_e4m3_e5m2(GroupedShapeKind shape);
GroupedInstance grouped_instance_e5m2_e4m3(GroupedShapeKind shape);
GroupedInstance grouped_instance_bf16(const GroupedOrder& order, bool reads_c);
GroupedInstance grouped_instance_f16(const GroupedOrder& order, bool reads_c);

}  // namespace cadre::sm90
