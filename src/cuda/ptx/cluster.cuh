// Blocks of a cluster: their barrier, and reads from each other's shared memory. sm_90 and up; code
// for older targets does nothing here and is never launched as a cluster.
#pragma once

#include <cstdint>

namespace cadre::ptx {

// Every thread of every block arrives once and waits once, in this order. What a thread wrote
// before it arrived is seen by all that have waited.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// The word of block `rank` at the place where `address` is in this one.
__device__ __forceinline__ uint32_t load_of_block(uint32_t address, uint32_t rank) {
  uint32_t value = 0;
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.u32 %0, [there];\n"
      "}"
      : "=r"(value)
      : "r"(address), "r"(rank)
      : "memory");
#endif
  return value;
}

}  // namespace cadre::ptx
