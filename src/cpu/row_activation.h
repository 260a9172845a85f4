// From a call's Activation to what the row kernels take.
#pragma once

#include "cpu/kernels/row_kernel.h"

namespace cadre::cpu {

inline RowActivation row_activation(const Activation& a, int64_t width) {
  return {.kind = a.kind,
          .gated = a.gated(),
          .interleaved = a.layout == GateLayout::kInterleaved,
          .alpha = a.alpha,
          .limit = a.limit,
          .up_offset = a.up_offset,
          .width = width};
}

}  // namespace cadre::cpu
