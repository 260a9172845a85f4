// tgmm on Hopper: out[g] = alpha * lhs[rows of g]^T x rhs[rows of g] + beta * C[g]. Both operands
// are read as they lie (rows are what is summed over, so both are MN-major for wgmma). A persistent
// CTA is four warps that feed and drain, and two warpgroups that multiply in turn:
//   tgmm_schedule -> ring of tiles -> every role
//   tgmm_produce -> stages -> tgmm_consume -> chunks -> tgmm_store_chunks -> out
//                                     tgmm_load_c -^ (where there is a C)
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/tgmm_consumer.cuh"
#include "cuda/sm90/tgmm_output.cuh"
#include "cuda/sm90/tgmm_plan.cuh"
#include "cuda/sm90/tgmm_producer.cuh"
#include "cuda/sm90/tgmm_schedule.cuh"

namespace cadre::sm90 {

template <typename Traits>
__device__ void tgmm_init_barriers(TgmmStorage<Traits>& shared) {
  auto init = [](uint64_t& barrier, int arrivals) {
    ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
  };
  for (int i = 0; i < Traits::kStages; ++i) {
    init(shared.stage_full[i], 1);
    init(shared.stage_empty[i], 1);
  }
  for (int i = 0; i < kTgmmRingSlots; ++i) {
    init(shared.ring_full[i], 1);
    init(shared.ring_empty[i], 8 + 2 + Traits::kWithC);  // consumer warps, and threads that feed
  }
  for (int i = 0; i < Traits::kChunks; ++i) {
    init(shared.chunk_empty[i], 1);
    init(shared.chunk_loaded[i], 1);
    init(shared.chunk_full[i], 4);  // warps
  }
  for (int i = 0; i < 2; ++i) {
    init(shared.multiply_turn[i], 1);
    init(shared.store_turn[i], 4);
  }
  ptx::fence_mbarrier_init();
}

template <typename Traits>
__global__ void __launch_bounds__(kTgmmThreads, 1)
    tgmm_kernel(const __grid_constant__ TgmmArguments args) {
  extern __shared__ __align__(1024) unsigned char raw[];
  TgmmStorage<Traits>& shared = *reinterpret_cast<TgmmStorage<Traits>*>(raw);

  // Setup, before the grids this one depends on have finished.
  if (threadIdx.x == 0) {
    tgmm_init_barriers(shared);
    ptx::prefetch_tensor_map(&args.lhs_map);
    ptx::prefetch_tensor_map(&args.rhs_map);
    ptx::prefetch_tensor_map(&args.out_map);
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (!tgmm_make_plan(shared, args)) return;

  // Roles. Registers: 128 x 40 + 256 x 232 = 64,512, all there are.
  const int warpgroup = ptx::uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::decrease_registers<40>();
    const int warp = ptx::uniform(threadIdx.x / 32);
    const bool first_lane = threadIdx.x % 32 == 0;
    if (warp == 0) {
      if (first_lane) tgmm_produce(shared, args);
    } else if (warp == 1) {
      tgmm_schedule(shared, args);
    } else if (warp == 2) {
      if (first_lane) tgmm_store_chunks(shared, args);
    } else if (Traits::kWithC) {
      if (first_lane) tgmm_load_c(shared, args);
    }
  } else {
    ptx::increase_registers<232>();
    tgmm_consume(shared, args,
                 {.warpgroup = warpgroup - 1,
                  .warp = static_cast<int>(threadIdx.x / 32 % 4),
                  .lane = static_cast<int>(threadIdx.x % 32)});
  }
}

}  // namespace cadre::sm90
