// The sink of results that can't wait in registers beside the next tile's sums: chunks go out when
// a tile ends. 16 bits: as many as a warpgroup has buffers between two barriers. fp32: one by one,
// in the buffers through which C came in.
#pragma once

#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/shared_access.cuh"
#include "cuda/sm90/epilogue/chunk.cuh"
#include "cuda/sm90/epilogue/deferred.cuh"

namespace cadre::sm90 {

// All threads of the warpgroup, before they write chunks: the copy engine has read the last ones.
// Buffer b belongs to lane 0 of warp b.
template <typename Traits>
__device__ __forceinline__ void wait_for_free_chunks(const ConsumerPlace& place) {
  if (place.lane() == 0 && place.warp() < Traits::kChunkBuffers) ptx::bulk_wait_group_read<0>();
  warpgroup_sync(place);
}

// Chunk c holds tokens c / kBlocks * 64 and on of block c % kBlocks. wait_for_free_chunks() has
// been called since the last tile.
template <typename Transform, typename Traits, typename Storage>
__device__ __forceinline__ void finish_at_once(Storage& shared, const GmmArguments& args,
                                               const ConsumerPlace& place, const Tile& tile,
                                               int width, const Accumulators<Traits>& acc) {
  constexpr int kBatch = Traits::kChunkBuffers;
  constexpr int kBlocks = Traits::kBlocks;
  constexpr int kChunks = kBlocks * (Traits::kTokens / kChunkTokens);
  const OutputPlace to = output_place<Traits>(args, place, tile);
  const int chunks = (width + kChunkTokens - 1) / kChunkTokens * kBlocks;
  const uint32_t buffers = ptx::shared_address(shared.chunks[place.warpgroup]);
#pragma unroll
  for (int first = 0; first < kChunks; first += kBatch) {
    if (first >= chunks) break;
    if (first > 0) wait_for_free_chunks<Traits>(place);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = first + i;
      if (chunk >= kChunks || chunk >= chunks) break;
      write_chunk<Transform, false, typename Traits::ElementA, 2>(
          shared.inputs, ChunkLane(ptx::thread_index()), acc[chunk % kBlocks],
          block_feature<Traits>(place, chunk % kBlocks), chunk / kBlocks * 8,
          buffers + i * kChunkBytes);
    }
    ptx::fence_async_shared();
    warpgroup_sync(place);
    const int mine = first + place.warp();
    if (place.lane() == 0 && place.warp() < kBatch && mine < chunks) {
      send_box(args, to, buffers + place.warp() * kChunkBytes,
               to.feature + mine % kBlocks * kBlockRows, mine / kBlocks * kChunkTokens);
      ptx::bulk_commit_group();
    }
    for (int i = 0; args.whole_columns != args.n && i < kBatch && first + i < chunks; ++i) {
      store_rest<false>(args, place, to, buffers + i * kChunkBytes,
                        to.feature + (first + i) % kBlocks * kBlockRows,
                        (first + i) / kBlocks * kChunkTokens);
    }
  }
}

// fp32. C is read from the very place the result is written to.
template <typename Transform, bool kC, typename Traits, typename Storage>
__device__ __forceinline__ void finish_wide(Storage& shared, const GmmArguments& args,
                                            const ConsumerPlace& place, const Tile& tile,
                                            ChunkBuffers<Traits, Storage>& buffers,
                                            const float (&acc)[Traits::kTokens / 2]) {
  const ChunkLane lane(ptx::thread_index());
  const OutputPlace to = output_place<Traits>(args, place, tile);
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kWideChunkTokens; ++chunk) {
    const int first_token = chunk * kWideChunkTokens;
    if (first_token >= tile.rows) break;
    const uint32_t base = kC ? buffers.wait_for_c(shared, place) : buffers.address(shared, place);
    write_wide_chunk<Transform, kC>(shared.inputs, lane, acc, block_feature<Traits>(place, 0),
                                    chunk * 4, base);
    buffers.publish(place);
    if (buffers.issuer()) {
      send_chunk(args, to, base, to.feature, first_token);
      ptx::bulk_commit_group();
    }
    store_rest<true>(args, place, to, base, to.feature, first_token);
    if constexpr (kC) {
      buffers.finish_rest(args, place);
      buffers.load_c(shared, args, place, tile, chunk + Traits::kChunkBuffers);
    }
    buffers.advance();
  }
}

// Zeros for a tile without products: the chunk at `buffer`, which is free, is cleared, and sent as
// often as needed by the threads for which `sends`.
__device__ __forceinline__ void clear_chunk(uint32_t buffer) {
  for (int offset = ptx::thread_index() % 128 * 4; offset < kChunkBytes; offset += 128 * 4) {
    ptx::store_shared(buffer + offset, 0.0f);
  }
}

template <typename Traits, bool kWide>
__device__ __forceinline__ void send_cleared_chunk(const GmmArguments& args,
                                                   const ConsumerPlace& place, const Tile& tile,
                                                   uint32_t buffer, bool sends) {
  const OutputPlace to = output_place<Traits>(args, place, tile);
  constexpr int kTokens = kWide ? kWideChunkTokens : kChunkTokens;
  for (int token = 0; token < to.rows; token += kTokens) {
    for (int block = 0; block < Traits::kBlocks; ++block) {
      const int feature = to.feature + block * kBlockRows;
      if (sends) send_chunk(args, to, buffer, feature, token);
      store_rest<kWide>(args, place, to, buffer, feature, token);
    }
  }
  if (sends) ptx::bulk_commit_group();
}

}  // namespace cadre::sm90
