// The consumer role: a warpgroup multiplies 64 features by the tile's tokens over all of K, one
// fp32 accumulator for each output and ascending k16 steps (so a row's bits depend on nothing
// else), then hands the tile to the epilogue.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/epilogue_at_once.cuh"
#include "cuda/sm90/epilogue_f32.cuh"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/gmm_storage.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/schedule.cuh"

namespace cadre::sm90 {

// Low words of the descriptors of the operands of one stage for this warpgroup; a k16 step moves
// each by a fixed distance (in 16 bytes).
struct StageOperands {
  uint32_t weights;
  uint32_t tokens;
};

template <int kN, int kStep, typename Traits>
__device__ __forceinline__ void issue_step(Accumulators<Traits>& acc, const StageOperands& operands,
                                           int accumulate) {
  using T = typename Traits::Element;
  constexpr int kTokens = kStep * kTokenStepK;
  ptx::wgmma_at<kN, T, Traits::kWeights, ptx::Major::kK, kStep * Traits::kWeightStep, kTokens>(
      reinterpret_cast<float(&)[kN / 2]>(acc[0]), operands.weights, operands.tokens, accumulate);
  if constexpr (Traits::kBlocks == 2) {
    constexpr int kWeights = kStep * Traits::kWeightStep + (kBlockBytes >> 4);
    ptx::wgmma_at<kN, T, Traits::kWeights, ptx::Major::kK, kWeights, kTokens>(
        reinterpret_cast<float(&)[kN / 2]>(acc[1]), operands.weights, operands.tokens, accumulate);
  }
}

// kSteps (1 or 4) k16 steps of one stage for a token tile of kN, as one wgmma group.
template <int kN, int kSteps, typename Traits>
__device__ __forceinline__ void issue_steps(Accumulators<Traits>& acc,
                                            const StageOperands& operands, int accumulate) {
  if constexpr (kN <= Traits::kTokens) {
    ptx::wgmma_fence();
    issue_step<kN, 0, Traits>(acc, operands, accumulate);
    if constexpr (kSteps == 4) {
      issue_step<kN, 1, Traits>(acc, operands, 1);
      issue_step<kN, 2, Traits>(acc, operands, 1);
      issue_step<kN, 3, Traits>(acc, operands, 1);
    }
    ptx::wgmma_commit();
  }
}

// The tile's width picks one of 16 instruction shapes. Fence, products and commit stand together in
// each case: the compiler tracks a group only within a straight piece of code.
template <int kSteps, typename Traits>
__device__ __forceinline__ void issue(Accumulators<Traits>& acc, int width,
                                      const StageOperands& operands, int accumulate) {
#define CADRE_WIDTH(i)                                                      \
  case i:                                                                   \
    issue_steps<i * kTokenStep, kSteps, Traits>(acc, operands, accumulate); \
    break;
  switch (width / kTokenStep) {
    CADRE_WIDTH(1)
    CADRE_WIDTH(2)
    CADRE_WIDTH(3)
    CADRE_WIDTH(4)
    CADRE_WIDTH(5)
    CADRE_WIDTH(6)
    CADRE_WIDTH(7)
    CADRE_WIDTH(8)
    CADRE_WIDTH(9)
    CADRE_WIDTH(10)
    CADRE_WIDTH(11)
    CADRE_WIDTH(12)
    CADRE_WIDTH(13)
    CADRE_WIDTH(14)
    CADRE_WIDTH(15)
    CADRE_WIDTH(16)
    default:
      break;
  }
#undef CADRE_WIDTH
}

// All of K for one tile. The previous tile's results leave while these products run. On return the
// accumulators are complete and every stage of the tile has been handed back.
template <typename Traits>
__device__ __forceinline__ void multiply(GmmStorage<Traits>& shared, const GmmArguments& args,
                                         const ConsumerPlace& place, const Tile& tile,
                                         uint32_t control, Cursor<Traits::kStages>& stage,
                                         ChunkBuffers<Traits>& buffers,
                                         PendingTile<Traits>& pending, Accumulators<Traits>& acc) {
  const int full_blocks = args.k / kTileK;
  const int rest_steps =
      (args.k % kTileK + 15) / 16;  // only steps that hold something: 0 * 0 would turn -0 into +0
  const int blocks = full_blocks + (rest_steps > 0);
  const int width = Tile::width(control);
  const bool wants_c = Traits::kGeneral && Tile::reads_c(control);
  constexpr uint32_t kLeading = Traits::kWeights == ptx::Major::kK ? 0 : kBlockBytes;
  const uint32_t stages = ptx::shared_address(shared.stages[0]);
  const uint32_t first_weights = ptx::wgmma_descriptor_low(
      stages + place.warpgroup * (Traits::kWeightBytes / kConsumers), kLeading);
  const uint32_t first_tokens = ptx::wgmma_descriptor_low(stages + Traits::kWeightBytes, 0);
  const uint32_t stage_empty = ptx::shared_address(shared.stage_empty);
  const uint32_t stage_full = ptx::shared_address(shared.stage_full);
  buffers.forget_c();
  for (int block = 0; block < blocks; ++block) {
    StageOperands operands = {first_weights + stage.slot() * (Traits::kStageBytes >> 4),
                              first_tokens + stage.slot() * (Traits::kStageBytes >> 4)};
    ptx::mbarrier_wait(stage_full + stage.slot() * 8, stage.parity());
    if (block < full_blocks) {
      issue<4, Traits>(acc, width, operands, block > 0);
    } else {
      for (int step = 0; step < rest_steps; ++step) {
        issue<1, Traits>(acc, width, operands, block + step > 0);
        operands.weights += Traits::kWeightStep;
        operands.tokens += kTokenStepK;
      }
    }
    ptx::wgmma_wait<1>();
    if (block > 0 && place.leader()) ptx::mbarrier_arrive(stage_empty + stage.previous_slot() * 8);
    if (Traits::kDeferredTokens == 0) {
      if (block == 0) wait_for_free_chunks<Traits>(place);
    } else if (pending.waits()) {
      store_next_chunk(shared, args, place, buffers, pending);
    } else if (wants_c && !buffers.reads_c()) {
      buffers.start_c(shared, args, place, tile);
    }
    stage.advance();
  }
}

// The last products of a tile.
template <typename Traits>
__device__ __forceinline__ void drain(GmmStorage<Traits>& shared, const GmmArguments& args,
                                      const ConsumerPlace& place, const Tile& tile,
                                      uint32_t control, const Cursor<Traits::kStages>& stage,
                                      ChunkBuffers<Traits>& buffers, PendingTile<Traits>& pending) {
  ptx::wgmma_wait<0>();
  if (place.leader()) {
    ptx::mbarrier_arrive(ptx::shared_address(&shared.stage_empty[stage.previous_slot()]));
  }
  while (pending.waits()) store_next_chunk(shared, args, place, buffers, pending);
  if (Traits::kGeneral && Tile::reads_c(control) && !buffers.reads_c()) {
    buffers.start_c(shared, args, place, tile);
  }
}

// From accumulators to out, or to `pending`.
template <typename Traits>
__device__ __forceinline__ void finish_tile(GmmStorage<Traits>& shared, const GmmArguments& args,
                                            const ConsumerPlace& place, const Tile& tile, int width,
                                            ChunkBuffers<Traits>& buffers,
                                            PendingTile<Traits>& pending,
                                            const Accumulators<Traits>& acc) {
  const bool factors = args.epilogue.has_factors;
  if constexpr (Traits::kDeferredTokens == 0) {
    const FinishedTile finished = {output_place<Traits>(args, place, tile), width};
    if (factors) {
      finish_at_once<FactorRounding>(shared, args, place, finished, acc);
    } else {
      finish_at_once<PlainRounding>(shared, args, place, finished, acc);
    }
  } else {
    if (args.epilogue.out == ElementKind::kF32) {
      if (factors) {
        finish_wide<true>(shared, args, place, buffers, acc[0], tile);
      } else {
        finish_wide<false>(shared, args, place, buffers, acc[0], tile);
      }
      // Nothing waits; said so that no register is held for it during the above.
#pragma unroll
      for (uint32_t& pair : pending.packed) pair = 0;
      return;
    }
    start_pending(shared, args, place, tile, width, buffers, pending);
    if (buffers.reads_c()) {
      finish_packed_with_c(shared, args, place, buffers, acc[0], tile, pending);
    } else if (factors) {
      finish_packed<FactorRounding>(shared, place, acc[0], width, pending);
    } else {
      finish_packed<PlainRounding>(shared, place, acc[0], width, pending);
    }
  }
}

// Rows that belong to no local group.
template <typename Traits>
__device__ __forceinline__ void zero_tile(GmmStorage<Traits>& shared, const GmmArguments& args,
                                          const ConsumerPlace& place, const Tile& tile,
                                          ChunkBuffers<Traits>& buffers,
                                          PendingTile<Traits>& pending) {
  while (pending.waits()) store_next_chunk(shared, args, place, buffers, pending);
  if constexpr (Traits::kDeferredTokens == 0) {
    store_zeros_at_once(shared, args, place, output_place<Traits>(args, place, tile));
  } else {
    if (args.epilogue.out == ElementKind::kF32) {
      store_wide_zeros(shared, args, place, buffers, tile);
      return;
    }
#pragma unroll
    for (uint32_t& pair : pending.packed) pair = 0;
    start_pending(shared, args, place, tile, (tile.rows + kTokenStep - 1) / kTokenStep * kTokenStep,
                  buffers, pending);
  }
}

template <typename Traits>
__device__ void consume(GmmStorage<Traits>& shared, const GmmArguments& args, int warpgroup) {
  const ConsumerPlace place = {warpgroup};
  const bool factors = args.epilogue.has_factors;
  uint32_t inputs_parity = 0;
  Cursor<Traits::kRingSlots> ring;
  Cursor<Traits::kStages> stage;
  ChunkBuffers<Traits> buffers;
  PendingTile<Traits> pending;
  Tile tile = take_tile(shared, ring);
  uint32_t control = tile.control;
  while (Tile::kind(control) != Tile::kEnd) {
    Tile next;
    if (Tile::kind(control) == Tile::kZero) {
      zero_tile(shared, args, place, tile, buffers, pending);
      next = take_tile(shared, ring);
    } else {
      Accumulators<Traits> acc;
      multiply(shared, args, place, tile, control, stage, buffers, pending, acc);
      next = take_tile(shared, ring);  // while the last products run
      drain(shared, args, place, tile, control, stage, buffers, pending);
      if (factors) ptx::mbarrier_wait(ptx::shared_address(&shared.inputs_full), inputs_parity);
      finish_tile(shared, args, place, tile, Tile::width(control), buffers, pending, acc);
      if (factors) ptx::mbarrier_arrive(ptx::shared_address(&shared.inputs_empty));
      inputs_parity ^= 1;
    }
    tile = next;
    control = tile.control;
  }
  while (pending.waits()) store_next_chunk(shared, args, place, buffers, pending);
  if (place.lane() == 0) ptx::bulk_wait_group<0>();
}

}  // namespace cadre::sm90
