// gmm on Hopper: out[rows of g] = lhs[rows of g] x rhs[g] with the weights as operand A of wgmma
// and the tokens as operand B, so that a tile is as wide as its tokens. A persistent CTA is three
// warps that feed and two warpgroups that multiply:
//   schedule -> ring of tiles -> produce_operands -> stages -> consume -> epilogue -> out
//                             -> produce_epilogue_inputs -------------^
#pragma once

#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/cta_roles.cuh"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/gmm_storage.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/schedule.cuh"
#include "cuda/sm90/stream_producer.cuh"
#include "cuda/sm90/stream_schedule.cuh"

namespace cadre::sm90 {

template <typename Traits>
__device__ void init_barriers(GmmStorage<Traits>& shared) {
  constexpr int kConsumerWarps = 4 * kConsumers;
  for (int i = 0; i < Traits::kStages; ++i) {
    init_barrier(shared.stage_full[i], 1);
    init_barrier(shared.stage_empty[i], kConsumers);
  }
  for (int i = 0; i < Traits::kRingSlots; ++i) {
    init_barrier(shared.ring_full[i], 1);
    init_barrier(shared.ring_empty[i], kConsumerWarps + 2);  // and the two producers
  }
  init_barrier(shared.inputs_full, 32);
  init_barrier(shared.inputs_empty, 128 * kConsumers);
  for (auto& of_warpgroup : shared.c_full) {
    for (uint64_t& barrier : of_warpgroup) init_barrier(barrier, 1);
  }
}

template <typename Traits>
__global__ void __launch_bounds__(kCtaThreads, 1)
    gmm_kernel(const __grid_constant__ GmmArguments args) {
  extern __shared__ __align__(1024) unsigned char raw[];
  GmmStorage<Traits>& shared = *reinterpret_cast<GmmStorage<Traits>*>(raw);
  start_cta([&] { init_barriers(shared); }, args.tokens_map, args.weights_map, args.out_map);
  if (args.skip_if != nullptr && *args.skip_if != 0) return;
  const int warpgroup = ptx::uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::decrease_registers<kFeedRegisters>();
    const int warp = ptx::uniform(threadIdx.x / 32);
    const bool first_lane = threadIdx.x % 32 == 0;
    if (warp == 0) {
      if (first_lane) {
        if constexpr (Traits::kStreams) {
          stream_operands<Traits>(shared, args);
        } else {
          produce_operands<Traits>(shared, args);
        }
      }
    } else if (warp == 1) {
      if constexpr (Traits::kStreams) {
        schedule_at_once<Traits>(shared, args);
      } else {
        schedule<Traits>(shared, args);
      }
    } else if (warp == 2) {
      produce_epilogue_inputs<Traits>(shared, args);
    }
  } else {
    ptx::increase_registers<kMultiplyRegisters>();
    consume<Traits>(shared, args, warpgroup - 1);
  }
}

}  // namespace cadre::sm90
