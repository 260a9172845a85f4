// The epilogue of tgmm: a warpgroup writes alpha * acc + beta * C of its tile into the chunks of
// shared memory (tgmm_output.cuh), each warp at its own pace, while the other warpgroup multiplies.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_access.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/sm90/tgmm_arguments.h"
#include "cuda/sm90/tgmm_storage.cuh"

namespace cadre::sm90 {

struct TgmmPlace {
  int warpgroup;  // 0 or 1
  int warp;       // 0 to 3 in the warpgroup: 16 rows of each 64
  int lane;
};

template <typename T>
__device__ __forceinline__ uint32_t tgmm_pack(float low, float high) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <typename T>
__device__ __forceinline__ float2 tgmm_unpack(uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}

// A chunk is 64 rows of 128 bytes; 16-byte column c of row r lies at column c ^ (r % 8), as the
// 128-byte swizzle wants it. Column numbers are XORed into a lane's address below.

// stmatrix: lane l points at row l % 8 (+ 8 for odd matrices) and column l / 16 of a pair.
__device__ __forceinline__ uint32_t tgmm_matrix_offset(const TgmmPlace& place) {
  const int row = place.warp * 16 + place.lane / 8 % 2 * 8 + place.lane % 8;
  const int column = (place.lane / 16) ^ (place.lane % 8);
  return row * 128 + column * 16;
}

// 16-bit pairs, one by one: block j of 8 columns is `^ (j * 16)`; the row 8 below is `+ 1024`.
__device__ __forceinline__ uint32_t tgmm_pair_offset(const TgmmPlace& place) {
  const int row = place.warp * 16 + place.lane / 4;
  return row * 128 + place.lane / 4 * 16 + place.lane % 4 * 4;
}

// fp32 pairs: block t of 8 columns is `^ (t * 32)`. Lanes of odd rows take blocks in the order
// t ^ 2, so that the 16 lanes of each half of a warp touch all 32 banks once.
__device__ __forceinline__ uint32_t tgmm_float_offset(const TgmmPlace& place) {
  const int row = place.lane / 4;
  const int column = (place.lane % 4 / 2) ^ row ^ (row % 2 * 4);
  return (place.warp * 16 + row) * 128 + column * 16 + place.lane % 2 * 8;
}

// Pair p of a thread's 16 values in a chunk of fp32, in that order.
__device__ __forceinline__ float2 tgmm_float_pair(const TgmmPlace& place, const float* acc, int p) {
  const bool odd = place.lane / 4 % 2 != 0;
  const int even_at = 2 * p;
  const int odd_at = 2 * (p ^ 4);
  return {odd ? acc[odd_at] : acc[even_at], odd ? acc[odd_at + 1] : acc[even_at + 1]};
}

// The tile's alpha; one that is known to be 1: a product less for each of many outputs; and a group
// without rows, whose sums are no numbers.
struct TgmmAlpha {
  float value;
  __device__ __forceinline__ float operator*(float sum) const { return value * sum; }
};
struct TgmmAlphaOne {
  __device__ __forceinline__ float operator*(float sum) const { return sum; }
};
struct TgmmNoRows {
  __device__ __forceinline__ float operator*(float /*sum*/) const { return 0.0f; }
};

// Writes a thread's share of a chunk: acc[4j + i] of blocks j of 8 columns. 64 columns of 16 bits,
// or 32 of fp32.
template <typename Out, typename Alpha>
__device__ __forceinline__ void tgmm_write_chunk(uint32_t chunk, const TgmmPlace& place,
                                                 const float* acc, Alpha alpha) {
  if constexpr (sizeof(Out) == 4) {
    const uint32_t address = chunk + tgmm_float_offset(place);
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const float2 value = tgmm_float_pair(place, acc, p);
      ptx::store_shared_float2((address ^ (p / 2 * 32)) + p % 2 * 1024, alpha * value.x,
                               alpha * value.y);
    }
  } else {
    const uint32_t address = chunk + tgmm_matrix_offset(place);
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        packed[i] = tgmm_pack<Out>(alpha * acc[4 * j + 2 * i], alpha * acc[4 * j + 2 * i + 1]);
      }
      ptx::stmatrix_x4(address ^ (j * 16), packed);
    }
  }
}

// The same over C, which lies in the chunk and is read before anything is written.
template <typename Out, typename Alpha>
__device__ __forceinline__ void tgmm_combine_chunk(uint32_t chunk, const TgmmPlace& place,
                                                   const float* acc, Alpha alpha, float beta) {
  if constexpr (sizeof(Out) == 4) {
    const uint32_t address = chunk + tgmm_float_offset(place);
    float2 c[8];
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      c[p] = ptx::load_shared_float2((address ^ (p / 2 * 32)) + p % 2 * 1024);
    }
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const float2 value = tgmm_float_pair(place, acc, p);
      ptx::store_shared_float2((address ^ (p / 2 * 32)) + p % 2 * 1024,
                               fmaf(beta, c[p].x, alpha * value.x),
                               fmaf(beta, c[p].y, alpha * value.y));
    }
  } else {
    const uint32_t address = chunk + tgmm_pair_offset(place);
    uint32_t words[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      words[i] = ptx::load_shared_word((address ^ (i / 2 * 16)) + i % 2 * 1024);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 c = tgmm_unpack<Out>(words[i]);
      ptx::store_shared_word((address ^ (i / 2 * 16)) + i % 2 * 1024,
                             tgmm_pack<Out>(fmaf(beta, c.x, alpha * acc[2 * i]),
                                            fmaf(beta, c.y, alpha * acc[2 * i + 1])));
    }
  }
}

// The columns of out after the last whole 16 bytes, which the copy engine can't write without what
// follows them: a warp stores them from its 16 rows of the chunk. `column` and `row` are the
// chunk's first ones in out.
template <typename Out>
__device__ __forceinline__ void tgmm_store_rest(const TgmmArguments& args, const TgmmPlace& place,
                                                const TgmmTile& tile, uint32_t chunk, int column,
                                                int row) {
  constexpr int kColumns = 128 / sizeof(Out);
  constexpr int kPiece = 16 / sizeof(Out);
  const int rest = args.whole_columns - column;  // the first of them within the chunk
  if (args.whole_columns == args.n || rest < 0 || rest >= kColumns) return;
  const uint64_t address = args.out.map_base + (static_cast<uint64_t>(tile.out_low) << 4) +
                           (static_cast<uint64_t>(tile.out_high) << (4 + kTgmmLowBits));
  for (int i = place.lane; i < 16 * kPiece; i += 32) {
    const int in_chunk = place.warp * 16 + i / kPiece;
    const int out_column = args.whole_columns + i % kPiece;
    if (out_column >= args.n || row + in_chunk >= args.k) continue;
    const uint32_t from = chunk + in_chunk * 128 + ((rest / kPiece) ^ (in_chunk % 8)) * 16 +
                          i % kPiece * static_cast<int>(sizeof(Out));
    auto* to = reinterpret_cast<Out*>(address) + (row + in_chunk) * args.out_row_stride;
    if constexpr (sizeof(Out) == 4) {
      to[out_column] = ptx::load_shared(from);
    } else {
      reinterpret_cast<uint16_t*>(to)[out_column] = ptx::load_shared_half(from);
    }
  }
}

// All chunks of a tile, from position `cursor` of the ring on.
template <typename Out, typename Alpha, typename Traits>
__device__ __forceinline__ void tgmm_fill_chunks(
    TgmmStorage<Traits>& shared, const TgmmArguments& args, const TgmmPlace& place,
    const TgmmTile& tile, Alpha alpha, TgmmCursor<Traits::kChunks>& cursor,
    const float (&acc)[Traits::kHalves][Traits::kTileN / 2]) {
  constexpr int kColumns = 128 / sizeof(Out);
  constexpr int kPerHalf = Traits::kTileN / kColumns;
  const uint32_t chunks = ptx::shared_address(shared.chunks);
  const uint32_t full = ptx::shared_address(shared.chunk_full);
  const uint32_t empty = ptx::shared_address(shared.chunk_empty);
  const uint32_t loaded = ptx::shared_address(shared.chunk_loaded);
#pragma unroll
  for (int i = 0; i < Traits::kHalves * kPerHalf; ++i) {
    const uint32_t chunk = chunks + cursor.slot * kTgmmChunkBytes;
    const float* values = &acc[i / kPerHalf][i % kPerHalf * kColumns / 2];
    // With C the second implies the first; racecheck follows no chain through the copy engine.
    ptx::mbarrier_wait(empty + cursor.slot * 8, cursor.parity ^ 1);
    if (Traits::kWithC) ptx::mbarrier_wait(loaded + cursor.slot * 8, cursor.parity);
    if (Traits::kWithC && tile.beta != 0.0f) {
      tgmm_combine_chunk<Out>(chunk, place, values, alpha, tile.beta);
    } else {
      tgmm_write_chunk<Out>(chunk, place, values, alpha);
    }
    ptx::fence_async_shared();
    if (args.whole_columns != args.n && i % kPerHalf * kColumns < tile.columns) {
      __syncwarp();
      tgmm_store_rest<Out>(args, place, tile, chunk, tile.n + i % kPerHalf * kColumns,
                           tile.k + i / kPerHalf * 64);
    }
    // Each thread for what it wrote: racecheck knows of no order through __syncwarp and one
    // arrival.
    ptx::mbarrier_arrive(full + cursor.slot * 8);
    cursor.advance();
  }
}

}  // namespace cadre::sm90
