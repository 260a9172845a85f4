// Nothing, but in builds with CADRE_CUDA_JITTER: there a warp comes late to one wait in eight, by a
// pseudo-random time of up to 33 us, many times what a tile takes. A protocol of barriers that is
// right only while warps keep step then hangs or gives other bits.
#pragma once

#include <cstdint>

namespace cadre::ptx {

__device__ __forceinline__ void jitter() {
#ifdef CADRE_JITTER
  uint32_t mixed = clock();
  mixed ^= (threadIdx.x / 32 + 1) * 0x9E3779B9u ^ blockIdx.x * 0x85EBCA6Bu;
  mixed ^= mixed >> 15;
  mixed *= 0x2C1B3C6Du;
  mixed ^= mixed >> 13;
  if (mixed % 8 == 0) __nanosleep(mixed >> 17);
#endif
}

}  // namespace cadre::ptx
