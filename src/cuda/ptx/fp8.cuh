// Pairs of f32 to pairs of e4m3 or e5m2 and back, for sm_89 and up.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

namespace cadre::ptx {

// The first value becomes the low byte. Rounds to nearest even; what is too large, infinity
// included, becomes the largest number of its sign, NaN the code 0x7f.
__device__ __forceinline__ uint32_t to_e4m3_pair(float low, float high) {
  uint16_t pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}
__device__ __forceinline__ uint32_t to_e5m2_pair(float low, float high) {
  uint16_t pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
#endif
  return pair;
}

// Exact: f16 has every number of either type. NaN becomes f16's.
__device__ __forceinline__ float2 from_half_pair(uint32_t pair) {
  __half2 halves;
  static_assert(sizeof(halves) == sizeof(pair));
  memcpy(&halves, &pair, sizeof(pair));
  return __half22float2(halves);
}
__device__ __forceinline__ float2 from_e4m3_pair(uint32_t codes) {
  uint32_t pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
#endif
  return from_half_pair(pair);
}
__device__ __forceinline__ float2 from_e5m2_pair(uint32_t codes) {
  uint32_t pair = 0;
#if __CUDA_ARCH__ >= 890
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(pair) : "h"(static_cast<uint16_t>(codes)));
#endif
  return from_half_pair(pair);
}

}  // namespace cadre::ptx
