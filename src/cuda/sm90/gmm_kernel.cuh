// gmm on Hopper: out[rows of g] = lhs[rows of g] x rhs[g] with the weights as operand A of wgmma
// and the tokens as operand B, so that a tile is as wide as its tokens. A persistent CTA is three
// warps that feed and two warpgroups that multiply:
//   schedule -> ring of tiles -> produce_operands -> stages -> consume -> epilogue -> out
//                             -> produce_epilogue_inputs -------------^
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/registers.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/gmm_storage.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/schedule.cuh"

namespace cadre::sm90 {

inline constexpr int kGmmThreads = 128 * (1 + kConsumers);

template <typename Traits>
__device__ void init_barriers(GmmStorage<Traits>& shared) {
  constexpr int kConsumerWarps = 4 * kConsumers;
  auto init = [](uint64_t& barrier, int arrivals) {
    ptx::mbarrier_init(ptx::shared_address(&barrier), arrivals);
  };
  for (int i = 0; i < Traits::kStages; ++i) {
    init(shared.stage_full[i], 1);
    init(shared.stage_empty[i], kConsumers);
  }
  for (int i = 0; i < Traits::kRingSlots; ++i) {
    init(shared.ring_full[i], 1);
    init(shared.ring_empty[i], kConsumerWarps + 2);  // and the two producers
  }
  init(shared.inputs_full, 32);
  for (auto& of_warpgroup : shared.c_full) {
    for (uint64_t& barrier : of_warpgroup) init(barrier, 1);
  }
  ptx::fence_mbarrier_init();
}

template <typename Traits>
__global__ void __launch_bounds__(kGmmThreads, 1)
    gmm_kernel(const __grid_constant__ GmmArguments args) {
  extern __shared__ __align__(1024) unsigned char raw[];
  GmmStorage<Traits>& shared = *reinterpret_cast<GmmStorage<Traits>*>(raw);

  // Setup, before the grids this one depends on have finished.
  if (threadIdx.x == 0) {
    init_barriers(shared);
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
    if (warp == 0) {
      if (threadIdx.x == 0) produce_operands<Traits>(shared, args);
    } else if (warp == 1) {
      schedule<Traits>(shared, args);
    } else if (warp == 2) {
      produce_epilogue_inputs<Traits>(shared, args);
    }
  } else {
    ptx::increase_registers<232>();
    consume<Traits>(shared, args, warpgroup - 1);
  }
}

}  // namespace cadre::sm90
