// A chunk: 8 KB of a tile's results on their way between registers and memory, in rows of 128 bytes
// under the swizzle. How gmm's sums, whose accumulators hold the transposed tile, are written into
// one and C is read from it; how a chunk is sent.
#pragma once

#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/shared_access.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/epilogue/transforms.cuh"
#include "cuda/sm90/mma/operands.cuh"
#include "cuda/sm90/pipeline/cta.cuh"
#include "cuda/sm90/pipeline/producers.cuh"
#include "cuda/sm90/schedule/tile.cuh"

namespace cadre::sm90 {

inline constexpr int kWideChunkTokens = 32;  // fp32: 32 tokens x 64 features, as two boxes of 32

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
// matrices 0, 1 are the warp's two groups of 8 features for 8 tokens, 2, 3 the same for the next 8.
__device__ __forceinline__ uint32_t matrix_offset(uint32_t thread) {
  const uint32_t lane = thread % 32;
  const uint32_t matrix = lane / 8;
  const uint32_t token = 8 * (matrix / 2) + lane % 8;
  const uint32_t column = (thread / 32 % 4 * 2 + matrix % 2) ^ (lane % 8);
  return token * kRowBytes + column * 16;
}

// Byte offset of (token, feature) in a chunk of fp32: two halves of [32 tokens][32 features]. A
// warp writes 4 even (or odd) tokens x 8 features at a time: all 32 banks once.
__device__ __forceinline__ uint32_t wide_offset(int token, int feature) {
  const int column = (feature % 32 / 4) ^ (token % 8);
  return feature / 32 * (kChunkBytes / 2) + token * kRowBytes + column * 16 + feature % 4 * 4;
}

// Where a thread's results of a tile lie, worked out once for all of its chunks.
struct ChunkLane {
  uint32_t matrix;   // 16 bits: what the lane points stmatrix and ldmatrix at in a chunk
  uint32_t wide[4];  // fp32: its two features of two tokens; 8 tokens on is 1024 bytes on
  int feature;       // its first of a block; the other one is 8 further
  int token;         // its first of 8; the other one is the next

  __device__ __forceinline__ explicit ChunkLane(uint32_t thread)
      : matrix(matrix_offset(thread)),
        feature(16 * (thread / 32 % 4) + thread % 32 / 4),
        token(2 * (thread % 4)) {
#pragma unroll
    for (int i = 0; i < 4; ++i) wide[i] = wide_offset(token + i % 2, feature + i / 2 * 8);
  }
};

// 16 bits: the sums of kCount (2 or 4) 8-token groups of a block, from group `group` on. `address`
// is the lane's for stmatrix and ldmatrix.
template <bool kC, typename T, int kCount, typename Inputs, typename Transform>
__device__ __forceinline__ void write_tokens(const Inputs& inputs, const Transform& transform,
                                             const typename Transform::template Rows<kCount>& rows,
                                             const float* acc, int group, uint32_t address) {
  const float beta = kC ? inputs.beta : 0.0f;
  uint32_t c[kCount / 2][4] = {};
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    if constexpr (kC) ptx::ldmatrix_x4_transposed(c[i], address + 2 * i * 1024);
  }
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int j = 2 * i + word / 2;
      const int h = word % 2;
      const float* sums = acc + 4 * (group + j) + 2 * h;
      float value[2] = {transform(sums[0], h, rows.at(j, 0)), transform(sums[1], h, rows.at(j, 1))};
      if constexpr (kC) {
        const float2 pair = unpack<T>(c[i][word]);
        value[0] = add_c(beta, pair.x, value[0]);
        value[1] = add_c(beta, pair.y, value[1]);
      }
      words[word] = pack<T>(value[0], value[1]);
    }
    ptx::stmatrix_x4_transposed(address + 2 * i * 1024, words);
  }
}

// A chunk of 64 tokens of a block, `feature` its first one in the tile, from 8-token group `group`
// on; factors and C of kAhead groups are read together.
template <typename Transform, bool kC, typename T, int kAhead, typename Inputs>
__device__ __forceinline__ void write_chunk(const Inputs& inputs, const ChunkLane& lane,
                                            const float* acc, int feature, int group,
                                            uint32_t chunk) {
  const Transform transform(inputs, feature + lane.feature);
#pragma unroll
  for (int j = 0; j < 8; j += kAhead) {
    const typename Transform::template Rows<kAhead> rows(inputs, group + j, lane.token);
    write_tokens<kC, T, kAhead>(inputs, transform, rows, acc, group + j,
                                chunk + lane.matrix + j * 1024);
  }
}

// The same in fp32, 32 tokens.
template <typename Transform, bool kC, typename Inputs>
__device__ __forceinline__ void write_wide_chunk(const Inputs& inputs, const ChunkLane& lane,
                                                 const float* acc, int feature, int group,
                                                 uint32_t chunk) {
  const Transform transform(inputs, feature + lane.feature);
#pragma unroll
  for (int first = 0; first < 4; first += 2) {
    const uint32_t base = chunk + first * 1024;
    const float beta = kC ? inputs.beta : 0.0f;
    float c[2][4];
    const typename Transform::template Rows<2> rows(inputs, group + first, lane.token);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kC) c[j][i] = ptx::load_shared(base + j * 1024 + lane.wide[i]);
      }
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float value = transform(acc[4 * (group + first + j) + i], i / 2, rows.at(j, i % 2));
        if constexpr (kC) value = add_c(beta, c[j][i], value);
        ptx::store_shared(base + j * 1024 + lane.wide[i], value);
      }
    }
  }
}

// Where a tile's results go.
struct OutputPlace {
  int group;
  int row;
  int rows;
  int feature;
};

// The map of out or C that serves a group: the one of all rows, or the group's own (a list).
__device__ __forceinline__ const CUtensorMap* map_of(const CUtensorMap& all,
                                                     const CUtensorMap* of_groups, int group) {
  if (of_groups == nullptr) return &all;
  ptx::fence_tensor_map_acquire(of_groups + group);
  return of_groups + group;
}

// `feature`: the first one within the tile.
__device__ __forceinline__ OutputPlace output_place(const GmmArguments& args, const Tile& tile,
                                                    int feature = 0) {
  return {.group = tile.group,
          .row = args.out_maps != nullptr ? tile.group_row : tile.row,
          .rows = tile.rows,
          .feature = tile.feature + feature};
}

// Sends a box of 128 bytes x 64 tokens (32 of fp32) from the tile's `first_token` on. Columns from
// whole_columns on lie outside the map: the copy engine writes whole vectors of 16 bytes, and what
// follows the last column isn't ours.
__device__ __forceinline__ void send_box(const GmmArguments& args, const OutputPlace& to,
                                         uint32_t chunk, int feature, int first_token) {
  if (feature >= args.whole_columns) return;
  const RaggedRows rows(to.row, to.rows, first_token);
  ptx::tma_store_4d(map_of(args.out_map, args.out_maps, to.group), chunk, feature, rows.bound,
                    rows.end, kRaggedBound);
}

// The boxes of a chunk: one of 16 bits, two of fp32.
__device__ __forceinline__ void send_chunk(const GmmArguments& args, const OutputPlace& to,
                                           uint32_t chunk, int feature, int first_token) {
  send_box(args, to, chunk, feature, first_token);
  if (args.epilogue.out == ElementKind::kF32) {
    send_box(args, to, chunk + kChunkBytes / 2, feature + 32, first_token);
  }
}

// Loads a chunk of C; rows past the tile's end are filled with zeros.
__device__ __forceinline__ void load_c_chunk(const GmmArguments& args, const Tile& tile,
                                             uint32_t chunk, uint32_t full, int feature,
                                             int first_token, uint64_t policy) {
  const CUtensorMap* map = map_of(args.c_map, args.c_maps, tile.group);
  const RaggedRows rows(args.c_maps != nullptr ? tile.group_row : tile.row, tile.rows, first_token);
  ptx::mbarrier_arrive_expect(full, kChunkBytes);
  ptx::tma_load_4d(chunk, map, full, policy, feature, rows.bound, rows.end, kRaggedBound);
  if (args.epilogue.out == ElementKind::kF32) {
    ptx::tma_load_4d(chunk + kChunkBytes / 2, map, full, policy, feature + 32, rows.bound, rows.end,
                     kRaggedBound);
  }
}

// What the copy engine leaves of one row of a chunk: `count` elements at the start of 16-byte
// vector `vector`, stored by address.
template <typename Bits>
__device__ __forceinline__ void store_rest_of_row(uint32_t chunk, int row, int vector, int count,
                                                  Bits* to) {
  const uint32_t from = chunk + row * kRowBytes + (vector ^ (row % 8)) * 16;
#pragma unroll 1  // rare: unrolled it would be a third of a kernel's code
  for (int i = 0; i < count; ++i) {
    if constexpr (sizeof(Bits) == 4) {
      to[i] = ptx::load_shared(from + i * 4);
    } else {
      to[i] = ptx::load_shared_half(from + i * 2);
    }
  }
}

// What send_chunk leaves, at most 7 columns: the warp whose features they are. kWide: fp32.
template <bool kWide>
__device__ __forceinline__ void store_rest(const GmmArguments& args, const ConsumerPlace& place,
                                           const OutputPlace& to, uint32_t chunk, int feature,
                                           int first_token) {
  using Bits = std::conditional_t<kWide, float, uint16_t>;
  constexpr int kTokens = kWide ? kWideChunkTokens : kChunkTokens;
  constexpr int kRowColumns = kRowBytes / sizeof(Bits);
  constexpr int kVector = 16 / sizeof(Bits);
  const int rest = args.whole_columns - feature;  // the first of them within the chunk
  if (args.whole_columns == args.n || rest < 0 || rest >= kBlockRows) return;
  if (rest / 16 != place.warp()) return;
  Bits* const out =
      static_cast<Bits*>(args.out_list != nullptr ? args.out_list[to.group] : args.out) +
      args.whole_columns;
  chunk += rest / kRowColumns * (kChunkBytes / 2);
#pragma unroll 1
  for (int token = place.lane(); token < kTokens && first_token + token < to.rows; token += 32) {
    store_rest_of_row(chunk, token, rest % kRowColumns / kVector, args.n - args.whole_columns,
                      out + (to.row + first_token + token) * args.out_stride);
  }
}

}  // namespace cadre::sm90
