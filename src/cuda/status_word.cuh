// Device side of the status word.
#pragma once

#include <cstdint>

#include "plan/device_fault.h"

namespace cadre::cuda {

/// Keeps `fault` unless an earlier one stands.
__device__ __forceinline__ void report_fault(int32_t* status_word, plan::DeviceFault fault) {
  atomicCAS(status_word, static_cast<int32_t>(plan::DeviceFault::kNone),
            static_cast<int32_t>(fault));
}

}  // namespace cadre::cuda
