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
};
using GmmInstance = Instance<GmmArguments>;
using TgmmInstance = Instance<TgmmArguments>;

GmmInstance gmm_instance_bf16(bool transposed_rhs, GmmShapeKind shape);
GmmInstance gmm_instance_f16(bool transposed_rhs, GmmShapeKind shape);
TgmmInstance tgmm_instance_bf16(bool reads_c);
TgmmInstance tgmm_instance_f16(bool reads_c);

}  // namespace cadre::sm90
