// Pairs of f32 to pairs of e4m3 or e5m2, for sm_89 and up.
#pragma once

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

}  // namespace cadre::ptx
