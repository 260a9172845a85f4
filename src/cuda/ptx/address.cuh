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

// threadIdx.x, read from the special register at this very place. Unsigned: a division is a shift.
__device__ __forceinline__ uint32_t thread_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// data += stride * count, at this very place: sums of such steps aren't formed ahead of time, where
// they would take registers.
__device__ __forceinline__ void step_forward(const char*& data, uint32_t stride, int count) {
  asm volatile("mad.wide.u32 %0, %1, %2, %0;" : "+l"(data) : "r"(stride), "r"(count));
}

}  // namespace cadre::ptx
