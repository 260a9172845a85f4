// The compiled instantiations of the gmm kernel, by element type; one source file for each keeps
// builds parallel.
#pragma once

#include <cstddef>

#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/heuristic.h"

namespace cadre::sm90 {

struct GmmInstance {
  void (*kernel)(GmmArguments) = nullptr;
  size_t shared_bytes = 0;
  int token_box = 0;
  bool streams = false;  ///< Traits::kStreams
};

GmmInstance gmm_instance_bf16(bool transposed_rhs, const GmmConfig& config);
GmmInstance gmm_instance_f16(bool transposed_rhs, const GmmConfig& config);

}  // namespace cadre::sm90
