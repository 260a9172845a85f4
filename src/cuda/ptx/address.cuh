// Shared-memory addresses as the 32-bit numbers that every PTX wrapper of this folder takes, and
// values that should live in uniform or special registers.
#pragma once

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The value of lane 0, so that the compiler sees a warp-uniform value (wgmma descriptors, branch
// conditions).
__device__ __forceinline__ int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// threadIdx.x, read from the special register at this very place.
__device__ __forceinline__ int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

}  // namespace cadre::ptx
