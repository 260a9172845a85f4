// The epilogue: from a warpgroup's fp32 accumulators (64 features x width tokens, transposed) to
// rows of out. 16-bit results are packed into registers at once and stored chunk by chunk while the
// next tile's products run (PendingTile); where there is no room for a second copy they go out
// directly (epilogue_at_once.cuh; epilogue_f32.cuh for fp32).
#pragma once

#include <type_traits>

#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/sm90/chunks.cuh"
#include "cuda/sm90/factors.cuh"

namespace cadre::sm90 {

// A finished tile whose 16-bit results still wait in registers. packed[2j + h]: feature lane/4 + 8h
// of the warp's 16, tokens 8j + 2(lane%4) and the next one.
template <typename Traits>
struct PendingTile {
  static constexpr int kTokens = Traits::kDeferredTokens;
  uint32_t packed[kTokens > 0 ? kTokens / 4 : 1];
  int chunk = 0;   // next to store
  int chunks = 0;  // of this tile

  __device__ __forceinline__ bool waits() const { return chunk < chunks; }
};

template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <typename T>
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}

// Where lane l of a warp points stmatrix and ldmatrix in a chunk of [64 tokens][64 features]:
// matrices 0, 1 are the warp's two groups of 8 features for 8 tokens, 2, 3 the same for the next 8;
// 16-byte columns under the 128-byte swizzle.
__device__ __forceinline__ uint32_t matrix_offset(const ConsumerPlace& place) {
  const int lane = place.lane();
  const int matrix = lane / 8;
  const int token = 8 * (matrix / 2) + lane % 8;
  const int column = (place.warp() * 2 + matrix % 2) ^ (lane % 8);
  return token * 128 + column * 16;
}

// kWords / 4 times 16 tokens of packed results, from p[0] on, through one chunk buffer: stmatrix
// transposes, the copy engine writes the valid rows.
template <int kWords, typename Traits>
__device__ __forceinline__ void store_words(GmmStorage<Traits>& shared, const GmmArguments& args,
                                            const ConsumerPlace& place,
                                            ChunkBuffers<Traits>& buffers, const uint32_t* p,
                                            int first_token) {
  const uint32_t chunk = buffers.address(shared, place);
  const uint32_t address = chunk + matrix_offset(place);
#pragma unroll
  for (int i = 0; i < kWords; i += 4) {
    ptx::stmatrix_x4_transposed(address + i * 4 * 128, {p[i], p[i + 1], p[i + 2], p[i + 3]});
  }
  buffers.publish(place);
  const OutputPlace& to = shared.pending[place.warpgroup][buffers.place_slot()];
  if (buffers.issuer()) {
    send_chunk(args, to, chunk, to.feature, first_token);
    ptx::bulk_commit_group();
  }
  store_rest(args, to, chunk, to.feature, first_token);
  buffers.advance();
}

// Registers have no run-time index, so each chunk has its own code.
template <typename Traits>
__device__ __forceinline__ void store_next_chunk(GmmStorage<Traits>& shared,
                                                 const GmmArguments& args,
                                                 const ConsumerPlace& place,
                                                 ChunkBuffers<Traits>& buffers,
                                                 PendingTile<Traits>& pending) {
  const auto store = [&](auto chunk) {
    constexpr int kChunk = decltype(chunk)::value;
    if constexpr (kChunk * kChunkTokens < PendingTile<Traits>::kTokens) {
      store_words<16>(shared, args, place, buffers, pending.packed + kChunk * 16,
                      kChunk * kChunkTokens);
    }
  };
  switch (pending.chunk) {
    case 0:
      store(std::integral_constant<int, 0>{});
      break;
    case 1:
      store(std::integral_constant<int, 1>{});
      break;
    case 2:
      store(std::integral_constant<int, 2>{});
      break;
    default:
      store(std::integral_constant<int, 3>{});
      break;
  }
  ++pending.chunk;
}

// Notes where the results go that `pending` is about to hold.
template <typename Traits>
__device__ __forceinline__ void start_pending(GmmStorage<Traits>& shared, const GmmArguments& args,
                                              const ConsumerPlace& place, const Tile& tile,
                                              int width, ChunkBuffers<Traits>& buffers,
                                              PendingTile<Traits>& pending) {
  buffers.next_place();
  if (place.leader()) {
    shared.pending[place.warpgroup][buffers.place_slot()] = output_place<Traits>(args, place, tile);
  }
  pending.chunk = 0;
  pending.chunks = (width + kChunkTokens - 1) / kChunkTokens;
}

// How the accumulators of 8 tokens (j: the j-th 8 of the tile) become results; `feature` is the
// block's first one within the tile.
struct PlainRounding {
  template <typename Inputs>
  __device__ __forceinline__ PlainRounding(const Inputs& /*inputs*/, const ConsumerPlace& /*place*/,
                                           int /*feature*/) {}

  template <typename T, typename Inputs>
  __device__ __forceinline__ void round(const Inputs& /*inputs*/, const float* acc, int j,
                                        uint32_t* packed) const {
    packed[0] = pack<T>(acc[4 * j], acc[4 * j + 1]);
    packed[1] = pack<T>(acc[4 * j + 2], acc[4 * j + 3]);
  }
};

struct FactorRounding {
  FeatureFactors features;
  int first_token;

  template <typename Inputs>
  __device__ __forceinline__ FactorRounding(const Inputs& inputs, const ConsumerPlace& place,
                                            int feature)
      : features(inputs, feature + feature_in_block(place)), first_token(pair_token()) {}

  template <typename Inputs>
  __device__ __forceinline__ void values(const Inputs& inputs, const float* acc, int j,
                                         float (&value)[4]) const {
    RowFactorPair rows;
    rows.read(inputs, 8 * j + first_token);
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = features.apply(acc[4 * j + i], i / 2, rows.row[i % 2]);
  }

  template <typename T, typename Inputs>
  __device__ __forceinline__ void round(const Inputs& inputs, const float* acc, int j,
                                        uint32_t* packed) const {
    float value[4];
    values(inputs, acc, j, value);
    packed[0] = pack<T>(value[0], value[1]);
    packed[1] = pack<T>(value[2], value[3]);
  }
};

// Rounds the accumulators into `pending`.
template <typename Rounding, typename Traits>
__device__ __forceinline__ void finish_packed(GmmStorage<Traits>& shared,
                                              const ConsumerPlace& place,
                                              const float (&acc)[Traits::kTokens / 2], int width,
                                              PendingTile<Traits>& pending) {
  static_assert(Traits::kTokens == Traits::kDeferredTokens);
  const Rounding rounding(shared.inputs, place, block_feature<Traits>(place, 0));
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kChunkTokens; ++chunk) {
    if (chunk * kChunkTokens < width) {
#pragma unroll
      for (int j = chunk * 8; j < chunk * 8 + 8; ++j) {
        rounding.template round<typename Traits::Element>(shared.inputs, acc, j,
                                                          pending.packed + 2 * j);
      }
    } else {
      // Assigned all the same: old values would have to be kept in registers meanwhile.
#pragma unroll
      for (int i = chunk * 16; i < chunk * 16 + 16; ++i) pending.packed[i] = 0;
    }
  }
}

// The same with C, which arrives chunk by chunk in the layout of the output and is read back
// transposed.
template <typename Traits>
__device__ __forceinline__ void finish_packed_with_c(
    GmmStorage<Traits>& shared, const GmmArguments& args, const ConsumerPlace& place,
    ChunkBuffers<Traits>& buffers, const float (&acc)[Traits::kTokens / 2], const Tile& tile,
    PendingTile<Traits>& pending) {
  using T = typename Traits::Element;
  static_assert(Traits::kTokens == Traits::kDeferredTokens);
  const FactorRounding rounding(shared.inputs, place, block_feature<Traits>(place, 0));
  const uint32_t in_chunk = matrix_offset(place);
  const float beta = shared.inputs.beta;
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kChunkTokens; ++chunk) {
    if (chunk * kChunkTokens >= tile.rows) {
#pragma unroll
      for (int i = chunk * 16; i < chunk * 16 + 16; ++i) pending.packed[i] = 0;
      continue;
    }
    const uint32_t c_chunk = buffers.wait_for_c(shared, place) + in_chunk;
#pragma unroll
    for (int j = chunk * 8; j < chunk * 8 + 8; j += 2) {
      uint32_t c[4];
      ptx::ldmatrix_x4_transposed(c, c_chunk + j % 8 * 1024);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float value[4];
        rounding.values(shared.inputs, acc, j + half, value);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 pair = unpack<T>(c[2 * half + h]);
          pending.packed[2 * (j + half) + h] =
              pack<T>(fmaf(beta, pair.x, value[2 * h]), fmaf(beta, pair.y, value[2 * h + 1]));
        }
      }
    }
    warpgroup_sync(place);  // everyone has read the buffer
    buffers.load_c(shared, args, place, tile, chunk + Traits::kChunkBuffers);
    buffers.advance();
  }
}

}  // namespace cadre::sm90
