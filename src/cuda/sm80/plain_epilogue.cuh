// The epilogue of most calls: results of the operands' own 16-bit type, scaled by alpha at most.
// The accumulators go from registers to memory, sixteen bytes a thread, without shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/sm80/arguments.h"

namespace cadre::sm80 {

template <typename T>
__device__ __forceinline__ bool is_plain(const ProductArguments& args, const GroupEntry& entry) {
  constexpr DType kType = std::is_same_v<T, __half> ? DType::kF16 : DType::kBF16;
  return args.d_dtype == kType && (entry.vector_flags & kVectorD) != 0 && entry.n % 8 == 0 &&
         entry.beta == 0 && entry.bias == nullptr && args.row_scale.data == nullptr;
}

template <typename T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

/// Four lanes of a quad each hold word q of four vectors; afterwards lane q holds all of vector q.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4], int lane) {
  const bool odd = (lane & 1) != 0;
  const bool upper = (lane & 2) != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? v[i] : v[i + 1], 1);
    v[i] = odd ? got : v[i];
    v[i + 1] = odd ? v[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[i + 2], 2);
    v[i] = upper ? got : v[i];
    v[i + 2] = upper ? v[i + 2] : got;
  }
}

/// (row, col) is the place of the warp's 64x64 tile in the group's D.
template <typename T>
__device__ __forceinline__ void store_plain_tile(const GroupEntry& entry, int64_t row, int64_t col,
                                                 const float (&acc)[4][8][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto alpha = static_cast<float>(entry.alpha);
  const int64_t stride = entry.d_row_stride;
  row += lane / 4;
  col += lane % 4 * 8;
  T* d = reinterpret_cast<T*>(entry.d) + row * stride + col;
  const int rows_left = static_cast<int>(min(entry.m - row, int64_t{64}));
  const int cols_left = static_cast<int>(min(entry.n - col, int64_t{64}));
#pragma unroll
  for (int mi = 0; mi < 4; ++mi) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        uint32_t v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float* pair = acc[mi][4 * group + i] + 2 * half;
          v[i] = pack_pair<T>(pair[0] * alpha, pair[1] * alpha);
        }
        transpose_quad(v, lane);
        if (16 * mi + 8 * half < rows_left && 32 * group < cols_left) {
          *reinterpret_cast<uint4*>(d + (16 * mi + 8 * half) * stride + 32 * group) =
              make_uint4(v[0], v[1], v[2], v[3]);
        }
      }
    }
  }
}

}  // namespace cadre::sm80
