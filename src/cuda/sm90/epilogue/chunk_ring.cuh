// The ring of chunks through which the results of warpgroups in turn leave and C comes in, in the
// order of tiles: a role that loads C far ahead of the warpgroup that adds to it, and a thread that
// stores what the warpgroups have filled. What a chunk holds of a tile is the op's business: its
// Chunks (gmm_chunks.cuh, tgmm_chunks.cuh) know how many a tile has, and send and load one.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/pipeline/cursor.cuh"
#include "cuda/sm90/schedule/tile_ring.cuh"
#include "cuda/sm90/shapes.h"

namespace cadre::sm90 {

// A chunk of the ring that a warpgroup fills.
template <typename Traits>
struct FilledChunk {
  uint32_t address;
  uint32_t full;  // its barrier

  // Waits until it may be written, and with C until that is there.
  template <typename Storage>
  __device__ __forceinline__ FilledChunk(Storage& shared, Cursor<Traits::kChunks>& cursor)
      : address(ptx::shared_address(shared.chunks) + cursor.slot() * kChunkBytes),
        full(ptx::shared_address(shared.chunk_full) + cursor.slot() * 8) {
    const uint32_t slot = cursor.slot() * 8;
    // With C the second implies the first; racecheck follows no chain through the copy engine.
    ptx::mbarrier_wait(ptx::shared_address(shared.chunk_empty) + slot, cursor.parity() ^ 1);
    if (Traits::kReadsC) {
      ptx::mbarrier_wait(ptx::shared_address(shared.chunk_loaded) + slot, cursor.parity());
    }
    cursor.advance();
  }

  // It is complete; fence_async_shared has been called since. Each thread for what it wrote:
  // racecheck knows of no order through __syncwarp and one arrival.
  __device__ __forceinline__ void publish() const { ptx::mbarrier_arrive(full); }
};

// One thread: C of a tile. Chunks that need none are passed on as they are.
template <typename Traits, typename Storage, typename Chunks, typename Tile>
__device__ __forceinline__ void load_c(Storage& shared, const Chunks& chunks, const Tile& tile,
                                       Cursor<Traits::kChunks>& cursor) {
  const int count = chunks.count(tile);
  for (int chunk = 0; chunk < count; ++chunk, cursor.advance()) {
    const uint32_t loaded = ptx::shared_address(&shared.chunk_loaded[cursor.slot()]);
    ptx::mbarrier_wait(ptx::shared_address(&shared.chunk_empty[cursor.slot()]),
                       cursor.parity() ^ 1);
    if (chunks.reads_c(tile, chunk)) {
      chunks.load_c(tile, chunk, ptx::shared_address(shared.chunks[cursor.slot()]), loaded);
    } else {
      ptx::mbarrier_arrive(loaded);
    }
  }
}

// One thread. A chunk is free again when the copy engine has read it; that is looked at when there
// is nothing else to store.
template <typename Traits, typename Storage, typename Chunks>
__device__ void store_chunks(Storage& shared, const Chunks& chunks) {
  Cursor<Traits::kRingSlots> ring;
  Cursor<Traits::kChunks> cursor;
  int unread = -1;  // the chunk stored last
  while (true) {
    const auto tile = next_tile(shared, ring);
    if (tile.is_end()) break;
    const int count = chunks.count(tile);
    for (int chunk = 0; chunk < count; ++chunk, cursor.advance()) {
      const uint32_t full = ptx::shared_address(&shared.chunk_full[cursor.slot()]);
      if (!ptx::mbarrier_test_wait(full, cursor.parity())) {
        if (unread >= 0) {
          ptx::bulk_wait_group_read<0>();
          ptx::mbarrier_arrive(ptx::shared_address(&shared.chunk_empty[unread]));
          unread = -1;
        }
        ptx::mbarrier_wait(full, cursor.parity());
      }
      chunks.send(tile, chunk, ptx::shared_address(shared.chunks[cursor.slot()]));
      ptx::bulk_commit_group();
      if (unread >= 0) {
        ptx::bulk_wait_group_read<1>();
        ptx::mbarrier_arrive(ptx::shared_address(&shared.chunk_empty[unread]));
      }
      unread = static_cast<int>(cursor.slot());
    }
  }
  ptx::bulk_wait_group<0>();
}

}  // namespace cadre::sm90
