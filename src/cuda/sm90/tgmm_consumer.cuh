// The consumers of tgmm: wgmma over a group's rows with both operands MN-major, one fp32
// accumulator for each output and ascending k16 steps, so that every instantiation gives the same
// bits.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/tgmm_epilogue.cuh"
#include "cuda/sm90/tgmm_schedule.cuh"
#include "cuda/sm90/tgmm_storage.cuh"

namespace cadre::sm90 {

template <typename Traits>
using TgmmAccumulator = float[Traits::kHalves][Traits::kTileN / 2];

// kSteps k16 steps of a stage for kHalves x 64 rows and kColumns columns of the tile; the halves
// share operand B.
template <int kSteps, int kHalves, int kColumns, typename Traits>
__device__ __forceinline__ void tgmm_issue_steps(TgmmAccumulator<Traits>& acc, uint32_t a,
                                                 uint32_t b, int accumulate) {
  constexpr uint32_t kStepBytes = 2048;  // 16 rows of 128 bytes
  ptx::wgmma_fence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint64_t b_step = ptx::wgmma_descriptor(b + step * kStepBytes, kTgmmAtomBytes);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const uint64_t a_step =
          ptx::wgmma_descriptor(a + half * kTgmmAtomBytes + step * kStepBytes, kTgmmAtomBytes);
      ptx::wgmma<kColumns, typename Traits::Element, ptx::Major::kMN, ptx::Major::kMN>(
          reinterpret_cast<float(&)[kColumns / 2]>(acc[half]), a_step, b_step,
          step == 0 ? accumulate : 1);
    }
  }
  ptx::wgmma_commit();
}

// A tile at the edge of out takes narrower instructions.
template <int kSteps, typename Traits>
__device__ __forceinline__ void tgmm_issue(TgmmAccumulator<Traits>& acc, const TgmmExtent& extent,
                                           uint32_t a, uint32_t b, int accumulate) {
  if (extent.atoms_b == Traits::kAtomsB) {
    if (extent.atoms_a == 2) {
      tgmm_issue_steps<kSteps, 2, Traits::kTileN, Traits>(acc, a, b, accumulate);
    } else {
      tgmm_issue_steps<kSteps, 1, Traits::kTileN, Traits>(acc, a, b, accumulate);
    }
  } else if (extent.atoms_b == 1) {
    tgmm_issue_steps<kSteps, 2, 64, Traits>(acc, a, b, accumulate);
  } else {
    tgmm_issue_steps<kSteps, 2, 128, Traits>(acc, a, b, accumulate);
  }
}

// All rows of the tile's group; without any the accumulators are left as they are (zeros would cost
// every tile a select for each of them). `issued` runs once all products have been issued; on
// return the accumulators are complete and every stage has been handed back.
template <typename Traits, typename Issued>
__device__ __forceinline__ void tgmm_multiply(TgmmStorage<Traits>& shared, int rows,
                                              const TgmmExtent& extent,
                                              TgmmCursor<Traits::kStages>& stage,
                                              TgmmAccumulator<Traits>& acc, Issued issued) {
  const bool leader = threadIdx.x % 128 == 0;
  const uint32_t stages = ptx::shared_address(shared.stages);
  const uint32_t stage_full = ptx::shared_address(shared.stage_full);
  const uint32_t stage_empty = ptx::shared_address(shared.stage_empty);
  int previous = -1;
  for (int done = 0; done < rows; done += kTgmmBlockRows) {
    const uint32_t a = stages + stage.slot * Traits::kStageBytes;
    const uint32_t b = a + Traits::kBytesA;
    ptx::mbarrier_wait(stage_full + stage.slot * 8, stage.parity);
    // Only steps that hold a row: an extra step of zeros could turn -0 into +0.
    const int steps = (rows - done + 15) / 16;
    if (steps >= 4) {
      tgmm_issue<4, Traits>(acc, extent, a, b, done > 0);
    } else {
      for (int step = 0; step < steps; ++step) {
        tgmm_issue<1, Traits>(acc, extent, a + step * 2048, b + step * 2048, done + step > 0);
      }
    }
    // One stage's products stay in flight. A short last stage is several groups, so it waits for
    // all but its own last step.
    ptx::wgmma_wait<1>();
    if (previous >= 0 && leader) ptx::mbarrier_arrive(stage_empty + previous * 8);
    previous = stage.slot;
    stage.advance();
  }
  issued();
  ptx::wgmma_wait<0>();
  if (previous >= 0 && leader) ptx::mbarrier_arrive(stage_empty + previous * 8);
}

template <typename Traits>
__device__ __forceinline__ TgmmTile tgmm_next_tile(TgmmStorage<Traits>& shared,
                                                   const TgmmPlace& place,
                                                   TgmmCursor<kTgmmRingSlots>& ring) {
  // The first lane reads the tile, hands it back and tells the others. (racecheck orders what
  // follows an mbarrier after the accesses of the very threads that arrived on it.)
  TgmmTile tile{};
  ptx::mbarrier_wait(ptx::shared_address(&shared.ring_full[ring.slot]), ring.parity);
  if (place.lane == 0) {
    tile = shared.ring[ring.slot];
    tgmm_release_tile(shared, ring);
  }
  ring.advance();
  tile.row = ptx::uniform(tile.row);
  tile.rows = ptx::uniform(tile.rows);
  tile.k = ptx::uniform(tile.k);
  tile.n = ptx::uniform(tile.n);
  tile.out_low = ptx::uniform(tile.out_low);
  tile.out_high = ptx::uniform(tile.out_high);
  tile.alpha = __int_as_float(ptx::uniform(__float_as_int(tile.alpha)));
  tile.beta = __int_as_float(ptx::uniform(__float_as_int(tile.beta)));
  tile.columns = ptx::uniform(tile.columns);
  return tile;
}

template <typename Traits>
__device__ __forceinline__ void tgmm_consume(TgmmStorage<Traits>& shared, const TgmmArguments& args,
                                             const TgmmPlace& place) {
  const int chunks = Traits::kHalves * Traits::kTileN / (args.output == TgmmOutput::kF32 ? 32 : 64);
  const uint32_t multiply_turn = ptx::shared_address(shared.multiply_turn);
  const uint32_t store_turn = ptx::shared_address(shared.store_turn);
  const int mine = place.warpgroup * 8;
  const int other = (place.warpgroup ^ 1) * 8;
  uint32_t turn_parity = place.warpgroup == 0 ? 1 : 0;  // warpgroup 0 starts
  TgmmCursor<kTgmmRingSlots> ring;
  TgmmCursor<Traits::kStages> stage;
  TgmmCursor<Traits::kChunks> chunk;
  for (int owner = 0;; owner ^= 1) {
    const TgmmTile tile = tgmm_next_tile(shared, place, ring);
    if (tile.is_end()) return;
    if (owner != place.warpgroup) {
      stage.advance_by(tgmm_blocks(tile));
      chunk.advance_by(chunks);
      continue;
    }
    TgmmExtent extent(tile, args.k);
    extent.atoms_a = ptx::uniform(extent.atoms_a);
    extent.atoms_b = ptx::uniform(extent.atoms_b);
    TgmmAccumulator<Traits> acc;
    ptx::mbarrier_wait(multiply_turn + mine, turn_parity);
    // Every warp hands the turn on, since no product holds the warps of an empty group together:
    // one thread could hand it on and get it back before a slow warp has looked for the phase it
    // awaits.
    tgmm_multiply(shared, tile.rows, extent, stage, acc, [&] {
      if (ptx::first_of_warp()) ptx::mbarrier_arrive(multiply_turn + other);
    });
    ptx::mbarrier_wait(store_turn + mine, turn_parity);
    const auto fill = [&](auto alpha) {
      if (args.output == TgmmOutput::kF32) {
        tgmm_fill_chunks<float>(shared, args, place, tile, alpha, chunk, acc);
      } else if (args.output == TgmmOutput::kBf16) {
        tgmm_fill_chunks<__nv_bfloat16>(shared, args, place, tile, alpha, chunk, acc);
      } else {
        tgmm_fill_chunks<__half>(shared, args, place, tile, alpha, chunk, acc);
      }
    };
    if (tile.rows == 0) {
      fill(TgmmNoRows{});
    } else if (tile.alpha == 1.0f) {
      fill(TgmmAlphaOne{});
    } else {
      fill(TgmmAlpha{tile.alpha});
    }
    if (ptx::first_of_warp()) ptx::mbarrier_arrive(store_turn + other);
    turn_parity ^= 1;
  }
}

}  // namespace cadre::sm90
