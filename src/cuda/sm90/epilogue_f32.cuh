// The epilogue of fp32 output: chunks of 32 tokens x 64 features, as two boxes of 32 features,
// straight from the accumulators.
#pragma once

#include "cuda/ptx/shared_access.cuh"
#include "cuda/sm90/chunks.cuh"
#include "cuda/sm90/factors.cuh"

namespace cadre::sm90 {

inline constexpr int kWideChunkTokens = 32;

// Byte offset of (token, feature) in a chunk: two halves of [32 tokens][32 features], each row 128
// bytes under the swizzle. A warp writes 4 even (or odd) tokens x 8 features at a time: all 32
// banks once.
__device__ __forceinline__ uint32_t wide_offset(int token, int feature) {
  const int column = (feature % 32 / 4) ^ (token % 8);
  return feature / 32 * (kChunkBytes / 2) + token * 128 + column * 16 + feature % 4 * 4;
}

template <typename Traits>
__device__ __forceinline__ void send_wide(const GmmArguments& args, const ConsumerPlace& place,
                                          const Tile& tile, uint32_t chunk, int first) {
  const OutputPlace to = output_place<Traits>(args, place, tile);
  send_chunk(args, to, chunk, to.feature, first);
  send_chunk(args, to, chunk + kChunkBytes / 2, to.feature + 32, first);
  ptx::bulk_commit_group();
}

// What send_wide leaves: all threads of the warpgroup.
__device__ __forceinline__ void store_wide_rest(const GmmArguments& args, const OutputPlace& to,
                                                uint32_t chunk, int first) {
  const int feature = args.whole_columns - to.feature;  // within the chunk
  if (args.whole_columns == args.n || feature < 0 || feature >= kBlockFeatures) return;
  const int thread = ptx::thread_index() % 128;
  const int token = thread / 4;
  const int column = thread % 4;
  if (args.whole_columns + column >= args.n || first + token >= to.rows) return;
  const float value = ptx::load_shared(chunk + wide_offset(token, feature + column));
  float* row = out_row<float>(args, to, first + token);
  row[args.whole_columns + column] = value;
}

// C is read from the very place the result is written to.
template <bool kFactors, typename Traits>
__device__ __forceinline__ void finish_wide(GmmStorage<Traits>& shared, const GmmArguments& args,
                                            const ConsumerPlace& place,
                                            ChunkBuffers<Traits>& buffers,
                                            const float (&acc)[Traits::kTokens / 2],
                                            const Tile& tile) {
  const int feature = feature_in_block(place);
  const int first_token = pair_token();
  uint32_t offset[4];  // of the thread's two features of two tokens; 8 tokens on is 1024 bytes on
#pragma unroll
  for (int i = 0; i < 4; ++i) offset[i] = wide_offset(first_token + i % 2, feature + i / 2 * 8);
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kWideChunkTokens; ++chunk) {
    if (chunk * kWideChunkTokens >= tile.rows) break;
    uint32_t base;
    if (kFactors && buffers.reads_c()) {
      base = buffers.wait_for_c(shared, place);
    } else {
      base = buffers.address(shared, place);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {  // 8 tokens each
      float value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = acc[(chunk * 4 + j) * 4 + i];
      if constexpr (kFactors) {
        const FeatureFactors features(shared.inputs, block_feature<Traits>(place, 0) + feature);
        RowFactorPair rows;
        rows.read(shared.inputs, chunk * kWideChunkTokens + 8 * j + first_token);
#pragma unroll
        for (int i = 0; i < 4; ++i) value[i] = features.apply(value[i], i / 2, rows.row[i % 2]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t address = base + j * 1024 + offset[i];
        if constexpr (kFactors) {
          if (buffers.reads_c())
            value[i] = fmaf(shared.inputs.beta, ptx::load_shared(address), value[i]);
        }
        ptx::store_shared(address, value[i]);
      }
    }
    buffers.publish(place);
    if (buffers.issuer()) send_wide<Traits>(args, place, tile, base, chunk * kWideChunkTokens);
    store_wide_rest(args, output_place<Traits>(args, place, tile), base, chunk * kWideChunkTokens);
    if (kFactors && buffers.reads_c()) {
      buffers.finish_rest(args, place);
      buffers.load_c(shared, args, place, tile, chunk + Traits::kChunkBuffers);
    }
    buffers.advance();
  }
}

// Zeros for a tile without products: one cleared chunk, sent as often as needed.
template <typename Traits>
__device__ __forceinline__ void store_wide_zeros(GmmStorage<Traits>& shared,
                                                 const GmmArguments& args,
                                                 const ConsumerPlace& place,
                                                 ChunkBuffers<Traits>& buffers, const Tile& tile) {
  const uint32_t base = buffers.address(shared, place);
  for (int offset = threadIdx.x % 128 * 4; offset < kChunkBytes; offset += 128 * 4) {
    ptx::store_shared(base + offset, 0.0f);
  }
  buffers.publish(place);
  if (buffers.issuer()) {
    for (int first = 0; first < tile.rows; first += kWideChunkTokens) {
      send_wide<Traits>(args, place, tile, base, first);
    }
  }
  for (int first = 0; first < tile.rows; first += kWideChunkTokens) {
    store_wide_rest(args, output_place<Traits>(args, place, tile), base, first);
  }
  buffers.advance();
}

}  // namespace cadre::sm90
