// What the CTAs of every Hopper kernel share: one warpgroup that feeds and two that multiply, their
// registers, and what happens before their roles begin.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tma.cuh"

namespace cadre::sm90 {

inline constexpr int kCtaThreads = 384;

__device__ __forceinline__ void init_barrier(uint64_t& barrier, int arrivals) {
  ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
}

// All threads: what can be done before the grids that this one depends on have finished, and then
// the wait for them.
template <typename InitBarriers>
__device__ __forceinline__ void start_cta(InitBarriers init_barriers, const CUtensorMap& a,
                                          const CUtensorMap& b, const CUtensorMap& out) {
  if (threadIdx.x == 0) {
    init_barriers();
    ptx::fence_mbarrier_init();
    ptx::prefetch_tensor_map(&a);
    ptx::prefetch_tensor_map(&b);
    ptx::prefetch_tensor_map(&out);
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
}

// Registers a thread of the feeding and of the other warpgroups: 128 x 40 + 256 x 232 = 64,512, all
// there are.
inline constexpr int kFeedRegisters = 40;
inline constexpr int kMultiplyRegisters = 232;

}  // namespace cadre::sm90
