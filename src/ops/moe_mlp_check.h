// Checks of MoeMlp's own arguments, before any of its ops is asked.
#pragma once

#include <cstdint>

#include "cadre/moe_mlp.h"
#include "ops/checker.h"

namespace cadre::ops {

struct MoeDims {
  Device device{};
  int64_t tokens = 0;
  int64_t top_k = 0;
  int64_t m = 0;     ///< rows
  int64_t h = 0;     ///< width of a token
  int64_t i = 0;     ///< width of the activation's result
  int64_t full = 0;  ///< width of the pre-activation: 2i with a gate
  int64_t num_groups = 0;
};

Status check_moe_forward(const MoeMlpWeights& weights, const MoeMlpOptions& options,
                         const MoeMlpForwardArgs& args, MoeDims* dims);
/// `delayed`: what a later backward_dw() reads must be given.
Status check_moe_backward(const MoeMlpWeights& weights, const MoeMlpOptions& options,
                          const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args, bool delayed,
                          MoeDims* dims);

}  // namespace cadre::ops
