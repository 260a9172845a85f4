// gmm on Hopper with warpgroups that take turns. A persistent CTA is four warps that feed and drain
// and two warpgroups that multiply:
//   schedule -> ring of tiles -> every role
//   produce_operands -> stages -> consume_in_turn -> chunks -> store_in_turn -> out
//                 produce_inputs_in_turn -^ (factors, and C where there is one)
#pragma once

#include "cuda/sm90/cta_roles.cuh"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/schedule.cuh"
#include "cuda/sm90/turn_consumer.cuh"
#include "cuda/sm90/turn_output.cuh"
#include "cuda/sm90/turn_storage.cuh"

namespace cadre::sm90 {

template <typename Traits>
__device__ void init_turn_barriers(TurnStorage<Traits>& shared) {
  for (int i = 0; i < Traits::kStages; ++i) {
    init_barrier(shared.stage_full[i], 1);
    init_barrier(shared.stage_empty[i], 1);
  }
  for (int i = 0; i < Traits::kRingSlots; ++i) {
    init_barrier(shared.ring_full[i], 1);
    init_barrier(shared.ring_empty[i], 4 * kConsumers + 3);  // and those that feed and drain
  }
  for (int i = 0; i < Traits::kInputs; ++i) {
    init_barrier(shared.inputs_full[i], 32);
    init_barrier(shared.inputs_empty[i], 128);  // the warpgroup whose tile it is
  }
  for (int i = 0; i < Traits::kChunks; ++i) {
    init_barrier(shared.chunk_empty[i], 1);
    init_barrier(shared.chunk_loaded[i], 1);
    init_barrier(shared.chunk_full[i], 128);  // every thread that wrote a part of it
  }
  for (int i = 0; i < kConsumers; ++i) {
    init_barrier(shared.multiply_turn[i], 4);  // every warp of the other warpgroup
    init_barrier(shared.store_turn[i], 4);
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kCtaThreads, 1)
    gmm_turn_kernel(const __grid_constant__ GmmArguments args) {
  extern __shared__ __align__(1024) unsigned char raw[];
  TurnStorage<Traits>& shared = *reinterpret_cast<TurnStorage<Traits>*>(raw);
  static_assert(sizeof(TurnStorage<Traits>) <= 232448);  // what a block may have
  start_cta([&] { init_turn_barriers(shared); }, args.tokens_map, args.weights_map, args.out_map);
  if (args.skip_if != nullptr && *args.skip_if != 0) return;
  const int warpgroup = ptx::uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::decrease_registers<kFeedRegisters>();
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
    ptx::increase_registers<kMultiplyRegisters>();
    consume_in_turn(shared, args, warpgroup - 1);
  }
}

}  // namespace cadre::sm90
