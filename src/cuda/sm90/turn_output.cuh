// The way of a tile's results through shared memory where warpgroups take turns: a warp that loads
// the factors and then C into free chunks, far ahead of the warpgroup that adds to it, and a thread
// that stores what the warpgroups have filled.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/chunks.cuh"
#include "cuda/sm90/producer.cuh"
#include "cuda/sm90/turn_storage.cuh"

namespace cadre::sm90 {

// One thread: C of a tile, chunk by chunk. Chunks of a group with beta = 0 are passed on as they
// are.
template <typename Traits>
__device__ __forceinline__ void load_c_in_turn(TurnStorage<Traits>& shared,
                                               const GmmArguments& args, const Tile& tile,
                                               Cursor<Traits::kChunks>& cursor) {
  const TurnChunks chunks(args);
  const bool reads = Tile::reads_c(tile.control);
  const bool wide = args.epilogue.out == ElementKind::kF32;
  const CUtensorMap* map = reads ? map_of(args.c_map, args.c_maps, tile.group) : nullptr;
  const int row = args.c_maps != nullptr ? tile.group_row : tile.row;
  const int count = chunks.count(tile.control);
  for (int chunk = 0; chunk < count; ++chunk, cursor.advance()) {
    const uint32_t loaded = ptx::shared_address(&shared.chunk_loaded[cursor.slot()]);
    ptx::mbarrier_wait(ptx::shared_address(&shared.chunk_empty[cursor.slot()]),
                       cursor.parity() ^ 1);
    if (!reads) {
      ptx::mbarrier_arrive(loaded);
      continue;
    }
    const uint32_t to = ptx::shared_address(shared.chunks[cursor.slot()]);
    const int feature = tile.feature + chunk % 2 * kBlockFeatures;
    const RaggedRows rows(row, tile.rows, chunk / 2 * chunks.tokens);
    ptx::mbarrier_arrive_expect(loaded, kChunkBytes);
    ptx::tma_load_4d(to, map, loaded, ptx::kEvictNormal, feature, rows.bound, rows.end, 1 << 30);
    if (wide) {
      ptx::tma_load_4d(to + kChunkBytes / 2, map, loaded, ptx::kEvictNormal, feature + 32,
                       rows.bound, rows.end, 1 << 30);
    }
  }
}

// One warp: all that a tile's epilogue reads.
template <typename Traits>
__device__ void produce_inputs_in_turn(TurnStorage<Traits>& shared, const GmmArguments& args) {
  const int lane = threadIdx.x % 32;
  Cursor<Traits::kRingSlots> ring;
  Cursor<Traits::kChunks> cursor;
  Cursor<Traits::kInputs> inputs;
  while (true) {
    const Tile tile = take_tile(shared, ring);
    if (Tile::kind(tile.control) == Tile::kEnd) return;
    if (Tile::kind(tile.control) == Tile::kProduct && args.epilogue.has_factors) {
      const LoadedFactors<Traits> factors(args, tile);
      const uint32_t slot = inputs.slot();
      ptx::mbarrier_wait(ptx::shared_address(&shared.inputs_empty[slot]), inputs.parity() ^ 1);
      factors.store(shared.inputs[slot], shared.inputs_full[slot], args, tile);
      inputs.advance();
    }
    if (Traits::kWithC && lane == 0) load_c_in_turn(shared, args, tile, cursor);
    __syncwarp();
  }
}

// One thread. A chunk is free again when the copy engine has read it; that is looked at when there
// is nothing else to store.
template <typename Traits>
__device__ void store_in_turn(TurnStorage<Traits>& shared, const GmmArguments& args) {
  const TurnChunks chunks(args);
  const bool wide = args.epilogue.out == ElementKind::kF32;
  Cursor<Traits::kRingSlots> ring;
  Cursor<Traits::kChunks> cursor;
  int unread = -1;  // the chunk stored last
  while (true) {
    const Tile tile = read_tile(shared, ring);
    release_tile(shared, ring);
    ring.advance();
    if (Tile::kind(tile.control) == Tile::kEnd) break;
    const OutputPlace to = turn_place(args, tile);
    const int count = chunks.count(tile.control);
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
      const uint32_t from = ptx::shared_address(shared.chunks[cursor.slot()]);
      const int feature = to.feature + chunk % 2 * kBlockFeatures;
      const int first_token = chunk / 2 * chunks.tokens;
      send_chunk(args, to, from, feature, first_token);
      if (wide) send_chunk(args, to, from + kChunkBytes / 2, feature + 32, first_token);
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
