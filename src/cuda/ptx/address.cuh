// Shared-memory addresses as the 32-bit numbers that every PTX wrapper of this folder takes.
#pragma once

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The value of lane 0, so that the compiler sees a warp-uniform value (wgmma descriptors, branch
// conditions).
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

}  // namespace cadre::ptx
