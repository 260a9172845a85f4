// The way of a tile's result through shared memory, in chunks of 64 rows x 128 bytes that pass
// through one ring in the order of tiles: a thread that loads C into free chunks, far ahead of the
// warpgroup that adds to it, and a thread that stores what the warpgroups have filled.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/tgmm_arguments.h"
#include "cuda/sm90/tgmm_schedule.cuh"
#include "cuda/sm90/tgmm_storage.cuh"

namespace cadre::sm90 {

// The chunks of a tile, row by row of 64.
template <typename Traits>
struct TgmmChunkGrid {
  int columns;   // of out in a chunk
  int per_half;  // chunks side by side

  __device__ __forceinline__ explicit TgmmChunkGrid(const TgmmArguments& args)
      : columns(args.output == TgmmOutput::kF32 ? 32 : 64), per_half(Traits::kTileN / columns) {}

  __device__ __forceinline__ int count() const { return Traits::kHalves * per_half; }
};

// One thread. Chunks of a group with beta = 0, or beyond the matrix, are passed on as they are: a
// box that lies outside the map in whole touches the map's base, where a list on the device has
// nothing.
template <typename Traits>
__device__ void tgmm_load_c(TgmmStorage<Traits>& shared, const TgmmArguments& args) {
  const TgmmChunkGrid<Traits> grid(args);
  const uint32_t chunks = ptx::shared_address(shared.chunks);
  const uint32_t empty = ptx::shared_address(shared.chunk_empty);
  const uint32_t loaded = ptx::shared_address(shared.chunk_loaded);
  TgmmCursor<kTgmmRingSlots> ring;
  TgmmCursor<Traits::kChunks> chunk;
  while (true) {
    const TgmmTile tile = tgmm_read_tile(shared, ring);
    tgmm_release_tile(shared, ring);
    ring.advance();
    if (tile.is_end()) return;
    for (int half = 0; half < Traits::kHalves; ++half) {
      for (int i = 0; i < grid.per_half; ++i) {
        const uint32_t barrier = loaded + chunk.slot * 8;
        const int k = tile.k + half * 64;
        const int column = tile.n + i * grid.columns;
        ptx::mbarrier_wait(empty + chunk.slot * 8, chunk.parity ^ 1);
        if (tile.beta == 0.0f || i * grid.columns >= tile.columns || column >= args.n ||
            k >= args.k) {
          ptx::mbarrier_arrive(barrier);
        } else {
          ptx::mbarrier_arrive_expect(barrier, kTgmmChunkBytes);
          ptx::tma_load_4d(chunks + chunk.slot * kTgmmChunkBytes, &args.c_map, barrier,
                           ptx::kEvictNormal, column, k, tile.c_low, tile.c_high);
        }
        chunk.advance();
      }
    }
  }
}

// One thread. A chunk is free again when the copy engine has read it; that is looked at when there
// is nothing else to store.
template <typename Traits>
__device__ void tgmm_store_chunks(TgmmStorage<Traits>& shared, const TgmmArguments& args) {
  const TgmmChunkGrid<Traits> grid(args);
  const uint32_t chunks = ptx::shared_address(shared.chunks);
  const uint32_t empty = ptx::shared_address(shared.chunk_empty);
  const uint32_t full = ptx::shared_address(shared.chunk_full);
  TgmmCursor<kTgmmRingSlots> ring;
  TgmmCursor<Traits::kChunks> chunk;
  int unread = -1;  // the chunk stored last
  while (true) {
    const TgmmTile tile = tgmm_read_tile(shared, ring);
    tgmm_release_tile(shared, ring);
    ring.advance();
    if (tile.is_end()) break;
    for (int half = 0; half < Traits::kHalves; ++half) {
      for (int i = 0; i < grid.per_half; ++i) {
        const uint32_t barrier = full + chunk.slot * 8;
        if (!ptx::mbarrier_test_wait(barrier, chunk.parity)) {
          if (unread >= 0) {
            ptx::bulk_wait_group_read<0>();
            ptx::mbarrier_arrive(empty + unread * 8);
            unread = -1;
          }
          ptx::mbarrier_wait(barrier, chunk.parity);
        }
        const int k = tile.k + half * 64;
        const int column = tile.n + i * grid.columns;
        if (i * grid.columns < tile.columns && column < args.whole_columns && k < args.k) {
          ptx::tma_store_4d(&args.out_map, chunks + chunk.slot * kTgmmChunkBytes, column, k,
                            tile.out_low, tile.out_high);
        }
        ptx::bulk_commit_group();
        if (unread >= 0) {
          ptx::bulk_wait_group_read<1>();
          ptx::mbarrier_arrive(empty + unread * 8);
        }
        unread = chunk.slot;
        chunk.advance();
      }
    }
  }
  ptx::bulk_wait_group<0>();
}

}  // namespace cadre::sm90
