// The epilogue of shapes whose accumulators leave no room for a second copy of the results: 16-bit
// chunks go out when a tile ends, as many as there are buffers between two barriers.
#pragma once

#include "cuda/sm90/chunks.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/factors.cuh"

namespace cadre::sm90 {

struct FinishedTile {
  OutputPlace to;
  int width;
};

// All threads of the warpgroup, before they write chunks: the copy engine has read the last ones.
// Buffer b belongs to lane 0 of warp b.
template <typename Traits>
__device__ __forceinline__ void wait_for_free_chunks(const ConsumerPlace& place) {
  if (place.lane() == 0 && place.warp() < Traits::kChunkBuffers) ptx::bulk_wait_group_read<0>();
  warpgroup_sync(place);
}

// Chunk c holds tokens c / kBlocks * 64 and on of block c % kBlocks. wait_for_free_chunks() has
// been called since the last tile.
template <typename Rounding, typename Traits>
__device__ __forceinline__ void finish_at_once(GmmStorage<Traits>& shared, const GmmArguments& args,
                                               const ConsumerPlace& place, const FinishedTile& tile,
                                               const Accumulators<Traits>& acc) {
  constexpr int kBatch = Traits::kChunkBuffers;
  constexpr int kBlocks = Traits::kBlocks;
  constexpr int kChunks = kBlocks * (Traits::kTokens / kChunkTokens);
  const int chunks = (tile.width + kChunkTokens - 1) / kChunkTokens * kBlocks;
  const uint32_t buffers = ptx::shared_address(shared.chunks[place.warpgroup]);
#pragma unroll
  for (int first = 0; first < kChunks; first += kBatch) {
    if (first >= chunks) break;
    if (first > 0) wait_for_free_chunks<Traits>(place);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int chunk = first + i;
      if (chunk >= kChunks || chunk >= chunks) break;
      const Rounding rounding(shared.inputs, place, block_feature<Traits>(place, chunk % kBlocks));
      const float* sums = acc[chunk % kBlocks];
      const uint32_t address = buffers + i * kChunkBytes + matrix_offset(place);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {
        uint32_t words[4];
        rounding.template round<typename Traits::Element>(shared.inputs, sums,
                                                          chunk / kBlocks * 8 + j, words);
        rounding.template round<typename Traits::Element>(shared.inputs, sums,
                                                          chunk / kBlocks * 8 + j + 1, words + 2);
        ptx::stmatrix_x4_transposed(address + j * 1024, words);
      }
    }
    ptx::fence_async_shared();
    warpgroup_sync(place);
    const int mine = first + place.warp();
    if (place.lane() == 0 && place.warp() < kBatch && mine < chunks) {
      send_chunk(args, tile.to, buffers + place.warp() * kChunkBytes,
                 tile.to.feature + mine % kBlocks * kBlockFeatures, mine / kBlocks * kChunkTokens);
      ptx::bulk_commit_group();
    }
    for (int i = 0; args.whole_columns != args.n && i < kBatch && first + i < chunks; ++i) {
      store_rest(args, tile.to, buffers + i * kChunkBytes,
                 tile.to.feature + (first + i) % kBlocks * kBlockFeatures,
                 (first + i) / kBlocks * kChunkTokens);
    }
  }
}

// Zeros for a tile without products: one cleared chunk, sent as often as needed.
template <typename Traits>
__device__ __forceinline__ void store_zeros_at_once(GmmStorage<Traits>& shared,
                                                    const GmmArguments& args,
                                                    const ConsumerPlace& place,
                                                    const OutputPlace& to) {
  const uint32_t buffer = ptx::shared_address(shared.chunks[place.warpgroup][0]);
  wait_for_free_chunks<Traits>(place);
  for (int offset = ptx::thread_index() % 128 * 4; offset < kChunkBytes; offset += 128 * 4) {
    ptx::store_shared(buffer + offset, 0.0f);
  }
  ptx::fence_async_shared();
  warpgroup_sync(place);
  for (int token = 0; token < to.rows; token += kChunkTokens) {
    for (int block = 0; block < Traits::kBlocks; ++block) {
      const int feature = to.feature + block * kBlockFeatures;
      if (place.leader()) send_chunk(args, to, buffer, feature, token);
      store_rest(args, to, buffer, feature, token);
    }
  }
  if (place.leader()) ptx::bulk_commit_group();
}

}  // namespace cadre::sm90
