// The producer of tgmm: one thread fills stage after stage with 64 rows of both operands through
// the copy engine. Rows past the group's end arrive as zeros in both (0 * NaN would be NaN).
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/tgmm_arguments.h"
#include "cuda/sm90/tgmm_schedule.cuh"
#include "cuda/sm90/tgmm_storage.cuh"

namespace cadre::sm90 {

template <typename Traits>
__device__ void tgmm_produce(TgmmStorage<Traits>& shared, const TgmmArguments& args) {
  const uint32_t stages = ptx::shared_address(shared.stages);
  const uint32_t stage_full = ptx::shared_address(shared.stage_full);
  const uint32_t stage_empty = ptx::shared_address(shared.stage_empty);
  TgmmCursor<kTgmmRingSlots> ring;
  TgmmCursor<Traits::kStages> stage;
  while (true) {
    const TgmmTile tile = tgmm_read_tile(shared, ring);
    tgmm_release_tile(shared, ring);
    ring.advance();
    if (tile.is_end()) return;
    const TgmmExtent extent = TgmmExtent(tile, args.k);
    const int bytes = (extent.atoms_a + extent.atoms_b) * kTgmmAtomBytes;
    const int end = tile.row + tile.rows;
    int bound = kRaggedBound - tile.rows;
    for (int block = tgmm_blocks(tile); block > 0; --block) {
      const uint32_t full = stage_full + stage.slot * 8;
      const uint32_t a = stages + stage.slot * Traits::kStageBytes;
      const uint32_t b = a + Traits::kBytesA;
      ptx::mbarrier_wait(stage_empty + stage.slot * 8, stage.parity ^ 1);
      ptx::mbarrier_arrive_expect(full, bytes);
#pragma unroll
      for (int i = 0; i < Traits::kHalves; ++i) {
        if (i >= extent.atoms_a) break;
        ptx::tma_load_4d(a + i * kTgmmAtomBytes, &args.lhs_map, full, ptx::kEvictNormal,
                         tile.k + 64 * i, bound, end, kRaggedBound);
      }
#pragma unroll
      for (int i = 0; i < Traits::kAtomsB; ++i) {
        if (i >= extent.atoms_b) break;
        ptx::tma_load_4d(b + i * kTgmmAtomBytes, &args.rhs_map, full, ptx::kEvictNormal,
                         tile.n + 64 * i, bound, end, kRaggedBound);
      }
      bound += kTgmmBlockRows;
      stage.advance();
    }
  }
}

}  // namespace cadre::sm90
