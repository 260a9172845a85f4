// bar.sync: hardware barriers 1 to 15 over a whole number of warps (0 is __syncthreads).
#pragma once

namespace cadre::ptx {

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace cadre::ptx
