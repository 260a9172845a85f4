// gmm on Hopper with warpgroups that take turns. A persistent CTA is four warps that feed and drain
// and two warpgroups that multiply:
//   schedule -> ring of tiles -> every role
//   produce_operands -> stages -> consume_in_turn -> chunks -> store_in_turn -> out
//                 produce_inputs_in_turn -^ (factors, and C where there is one)
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/schedule.cuh"
#include "cuda/sm90/turn_consumer.cuh"
#include "cuda/sm90/turn_output.cuh"
#include "cuda/sm90/turn_storage.cuh"

namespace cadre::sm90 {

template <typename Traits>
__device__ void init_turn_barriers(TurnStorage<Traits>& shared) {
  auto init = [](uint64_t& barrier, int arrivals) {
    ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
  };
  for (int i = 0; i < Traits::kStages; ++i) {
    init(shared.stage_full[i], 1);
    init(shared.stage_empty[i], 1);
  }
  for (int i = 0; i < Traits::kRingSlots; ++i) {
    init(shared.ring_full[i], 1);
    init(shared.ring_empty[i], 4 * kConsumers + 3);  // and those that feed and drain
  }
  for (uint64_t& barrier : shared.inputs_full) init(barrier, 32);
  for (int i = 0; i < Traits::kChunks; ++i) {
    init(shared.chunk_empty[i], 1);
    init(shared.chunk_loaded[i], 1);
    init(shared.chunk_full[i], 4);
  }
  for (int i = 0; i < kConsumers; ++i) {
    init(shared.multiply_turn[i], 1);
    init(shared.store_turn[i], 4);
  }
  ptx::fence_mbarrier_init();
}

template <typename Traits>
__global__ void __launch_bounds__(128 * (1 + kConsumers), 1)
    gmm_turn_kernel(const __grid_constant__ GmmArguments args) {
  extern __shared__ __align__(1024) unsigned char raw[];
  TurnStorage<Traits>& shared = *reinterpret_cast<TurnStorage<Traits>*>(raw);
  static_assert(sizeof(TurnStorage<Traits>) <= 232448);  // what a block may have

  // Setup, before the grids this one depends on have finished.
  if (threadIdx.x == 0) {
    init_turn_barriers(shared);
    ptx::prefetch_tensor_map(&args.tokens_map);
    ptx::prefetch_tensor_map(&args.weights_map);
    ptx::prefetch_tensor_map(&args.out_map);
  }
  __syncthreads();
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  if (args.skip_if != nullptr && *args.skip_if != 0) return;

  // Roles. Registers: 128 x 40 + 256 x 232 = 64,512, all there are.
  const int warpgroup = ptx::uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::decrease_registers<40>();
    const int warp = ptx::uniform(threadIdx.x / 32);
    const bool first_lane = threadIdx.x % 32 == 0;
    if (warp == 0) {
      if (first_lane) produce_operands<Traits>(shared, args);
    } else if (warp == 1) {
      schedule<Traits>(shared, args);
    } else if (warp == 2) {
      produce_inputs_in_turn(shared, args);
    } else {
      if (first_lane) store_in_turn(shared, args);
    }
  } else {
    ptx::increase_registers<232>();
    consume_in_turn(shared, args, warpgroup - 1);
  }
}

}  // namespace cadre::sm90
