// The consumers where warpgroups take turns: each owns every second tile, multiplies it alone and
// finishes it while the other one multiplies. Sums as in consumer.cuh: one fp32 accumulator for
// each output and ascending k16 steps.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/consumer.cuh"
#include "cuda/sm90/turn_epilogue.cuh"
#include "cuda/sm90/turn_output.cuh"
#include "cuda/sm90/turn_storage.cuh"

namespace cadre::sm90 {

// One thread for the warpgroup.
__device__ __forceinline__ bool warpgroup_leader() { return ptx::thread_index() % 128 == 0; }

// All of K for one tile; nothing for one without products. `issued` runs once all products have
// been issued; on return the accumulators are complete and every stage has been handed back. (They
// aren't set to zero where there are no products: the compiler would make that a select for each of
// them in every tile.)
template <typename Traits, typename Issued>
__device__ __forceinline__ void multiply_in_turn(TurnStorage<Traits>& shared,
                                                 const GmmArguments& args, uint32_t control,
                                                 Cursor<Traits::kStages>& stage,
                                                 Accumulators<Traits>& acc, Issued issued) {
  const bool product = Tile::kind(control) == Tile::kProduct;
  const int full_blocks = product ? args.k / kTileK : 0;
  // Only steps that hold something: 0 * 0 would turn -0 into +0.
  const int rest_steps = product ? (args.k % kTileK + 15) / 16 : 0;
  const int blocks = full_blocks + (rest_steps > 0);
  const int width = Tile::width(control);
  constexpr uint32_t kLeading = Traits::kWeights == ptx::Major::kK ? 0 : kBlockBytes;
  const uint32_t stages = ptx::shared_address(shared.stages[0]);
  const uint32_t first_weights = ptx::wgmma_descriptor_low(stages, kLeading);
  const uint32_t first_tokens = ptx::wgmma_descriptor_low(stages + Traits::kWeightBytes, 0);
  const uint32_t stage_empty = ptx::shared_address(shared.stage_empty);
  const uint32_t stage_full = ptx::shared_address(shared.stage_full);
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
    if (block > 0 && warpgroup_leader()) {
      ptx::mbarrier_arrive(stage_empty + stage.previous_slot() * 8);
    }
    stage.advance();
  }
  issued();
  ptx::wgmma_wait<0>();
  if (product && warpgroup_leader()) {
    ptx::mbarrier_arrive(stage_empty + stage.previous_slot() * 8);
  }
}

template <typename Traits>
__device__ __forceinline__ void finish_with_factors(TurnStorage<Traits>& shared,
                                                    const GmmArguments& args,
                                                    const ConsumerPlace& place, const Tile& tile,
                                                    int inputs_slot,
                                                    Cursor<Traits::kChunks>& cursor,
                                                    const Accumulators<Traits>& acc) {
  if (Traits::kWithC && Tile::reads_c(tile.control)) {
    if (args.epilogue.has_row_factors) {
      finish_in_turn<TurnResult::kRowFactorsAndC>(shared, args, place, tile, inputs_slot, cursor,
                                                  acc);
    } else {
      finish_in_turn<TurnResult::kFactorsAndC>(shared, args, place, tile, inputs_slot, cursor, acc);
    }
  } else if (Traits::kWithC || args.epilogue.has_row_factors) {
    finish_in_turn<TurnResult::kRowFactors>(shared, args, place, tile, inputs_slot, cursor, acc);
  } else {
    finish_in_turn<TurnResult::kFactors>(shared, args, place, tile, inputs_slot, cursor, acc);
  }
}

template <typename Traits>
__device__ __forceinline__ void consume_in_turn(TurnStorage<Traits>& shared,
                                                const GmmArguments& args, int warpgroup) {
  const ConsumerPlace place = {0};  // within the tile, which is the warpgroup's alone
  const TurnChunks chunks(args);
  const bool factors = args.epilogue.has_factors;
  const int k_blocks = (args.k + kTileK - 1) / kTileK;
  const uint32_t multiply_turn = ptx::shared_address(shared.multiply_turn);
  const uint32_t store_turn = ptx::shared_address(shared.store_turn);
  const int mine = warpgroup * 8;
  const int other = (warpgroup ^ 1) * 8;
  uint32_t turn_parity = warpgroup == 0 ? 1 : 0;  // warpgroup 0 starts
  Cursor<Traits::kInputs> inputs;
  Cursor<Traits::kRingSlots> ring;
  Cursor<Traits::kStages> stage;
  Cursor<Traits::kChunks> cursor;
  for (int owner = 0;; owner ^= 1) {
    const Tile tile = take_tile(shared, ring);
    const uint32_t control = tile.control;
    const bool product = Tile::kind(control) == Tile::kProduct;
    if (Tile::kind(control) == Tile::kEnd) return;
    if (owner == warpgroup) {
      Accumulators<Traits> acc;
      ptx::mbarrier_wait(multiply_turn + mine, turn_parity);
      // Every warp hands the turn on, since no product holds the warps of a tile without any
      // together: one thread could hand it on and get it back before a slow warp has looked for its
      // phase.
      multiply_in_turn(shared, args, control, stage, acc, [&] {
        if (ptx::first_of_warp()) ptx::mbarrier_arrive(multiply_turn + other);
      });
      ptx::mbarrier_wait(store_turn + mine, turn_parity);
      if (product && factors) {
        const int slot = static_cast<int>(inputs.slot());
        ptx::mbarrier_wait(ptx::shared_address(&shared.inputs_full[slot]), inputs.parity());
        finish_with_factors(shared, args, place, tile, slot, cursor, acc);
        ptx::mbarrier_arrive(ptx::shared_address(&shared.inputs_empty[slot]));
      } else if (product) {
        finish_in_turn<TurnResult::kPlain>(shared, args, place, tile, 0, cursor, acc);
      } else {
        finish_in_turn<TurnResult::kZeros>(shared, args, place, tile, 0, cursor, acc);
      }
      if (ptx::first_of_warp()) ptx::mbarrier_arrive(store_turn + other);
      turn_parity ^= 1;
    } else {
      if (product) stage.advance_by(k_blocks);
      cursor.advance_by(chunks.count(control));
    }
    if (product) inputs.advance();
  }
}

}  // namespace cadre::sm90
