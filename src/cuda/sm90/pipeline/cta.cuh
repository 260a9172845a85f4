// What the CTAs of every Hopper kernel share: one warpgroup that feeds and two that multiply, their
// registers, what happens before their roles begin, and how a consumer thread knows its place.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/shapes.h"

namespace cadre::sm90 {

template <typename Barriers>
__device__ __forceinline__ void init_barriers(Barriers& barriers, int arrivals) {
  for (uint64_t& barrier : barriers) ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
}

// All threads: what can be done before the grids that this one depends on have finished, and then
// the wait for them.
template <typename InitBarriers, typename... Maps>
__device__ __forceinline__ void start_cta(InitBarriers init_barriers, const Maps&... maps) {
  if (threadIdx.x == 0) {
    init_barriers();
    ptx::fence_mbarrier_init();
    (ptx::prefetch_tensor_map(&maps), ...);
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
}

// What a thread of a consumer warpgroup knows of its place. All but the warpgroup is read anew each
// time: a register held through the products costs more than the read.
struct ConsumerPlace {
  int warpgroup;  // within the tile: 0 where the tile is one warpgroup's alone

  __device__ __forceinline__ int warp() const { return ptx::thread_index() / 32 % 4; }
  __device__ __forceinline__ int lane() const { return ptx::thread_index() % 32; }
  // One thread for the warpgroup.
  __device__ __forceinline__ bool leader() const { return ptx::thread_index() % 128 == 0; }
};

// Only where both warpgroups work on one tile: the barrier's number is the warpgroup's.
__device__ __forceinline__ void warpgroup_sync(const ConsumerPlace& place) {
  ptx::named_barrier_sync(1 + place.warpgroup, 128);
}

}  // namespace cadre::sm90
