// tgmm on Hopper: out[g] = alpha * lhs[rows of g]^T x rhs[rows of g] + beta * C[g]. Both operands
// are read as they lie (rows are what is summed over, so both are MN-major for wgmma). A persistent
// CTA is four warps that feed and drain, and two warpgroups that multiply in turn:
//   tgmm_schedule -> ring of tiles -> every role
//   tgmm_produce -> stages -> tgmm_consume -> chunks -> tgmm_store_chunks -> out
//                                     tgmm_load_c -^ (where there is a C)
#pragma once

#include "cuda/sm90/cta_roles.cuh"
#include "cuda/sm90/tgmm_consumer.cuh"
#include "cuda/sm90/tgmm_output.cuh"
#include "cuda/sm90/tgmm_plan.cuh"
#include "cuda/sm90/tgmm_producer.cuh"
#include "cuda/sm90/tgmm_schedule.cuh"

namespace cadre::sm90 {

template <typename Traits>
__device__ void tgmm_init_barriers(TgmmStorage<Traits>& shared) {
  for (int i = 0; i < Traits::kStages; ++i) {
    init_barrier(shared.stage_full[i], 1);
    init_barrier(shared.stage_empty[i], 1);
  }
  for (int i = 0; i < kTgmmRingSlots; ++i) {
    init_barrier(shared.ring_full[i], 1);
    init_barrier(shared.ring_empty[i],
                 8 + 2 + Traits::kWithC);  // consumer warps, and threads that feed
  }
  for (int i = 0; i < Traits::kChunks; ++i) {
    init_barrier(shared.chunk_empty[i], 1);
    init_barrier(shared.chunk_loaded[i], 1);
    init_barrier(shared.chunk_full[i], 128);  // every thread that wrote a part of it
  }
  for (int i = 0; i < 2; ++i) {
    init_barrier(shared.multiply_turn[i], 4);  // every warp of the other warpgroup
    init_barrier(shared.store_turn[i], 4);
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kCtaThreads, 1)
    tgmm_kernel(const __grid_constant__ TgmmArguments args) {
  extern __shared__ __align__(1024) unsigned char raw[];
  TgmmStorage<Traits>& shared = *reinterpret_cast<TgmmStorage<Traits>*>(raw);
  static_assert(kCtaThreads == kTgmmThreads);
  start_cta([&] { tgmm_init_barriers(shared); }, args.lhs_map, args.rhs_map, args.out_map);
  if (!tgmm_make_plan(shared, args)) return;
  const int warpgroup = ptx::uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::decrease_registers<kFeedRegisters>();
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
    ptx::increase_registers<kMultiplyRegisters>();
    tgmm_consume(shared, args,
                 {.warpgroup = warpgroup - 1,
                  .warp = static_cast<int>(threadIdx.x / 32 % 4),
                  .lane = static_cast<int>(threadIdx.x % 32)});
  }
}

}  // namespace cadre::sm90
