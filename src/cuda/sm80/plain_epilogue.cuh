// The epilogue of most calls: results of the operands' own 16-bit type, scaled by alpha at most.
// They are rounded first, so that half the shared memory holds them, and leave in whole lines.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/sm80/arguments.h"
#include "cuda/sm80/mma_shape.h"

namespace cadre::sm80 {

template <typename T>
__device__ __forceinline__ bool is_plain(const ProductArguments& args, const GroupEntry& entry) {
  constexpr DType kType = std::is_same_v<T, __half> ? DType::kF16 : DType::kBF16;
  return args.d_dtype == kType && (entry.vector_flags & kVectorD) != 0 && entry.n % 8 == 0 &&
         entry.beta == 0 && entry.bias == nullptr && args.epilogue.row_scale.data == nullptr;
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

/// (row, col) is the place of the warp's 64x64 tile in the group's D; `strip` is the warp's own
/// shared memory. Sixteen rows at a time pass through it, 144 bytes apart (so that neither the
/// writes nor the reads meet a bank twice), and leave as whole lines of 128 bytes.
template <typename T>
__device__ __forceinline__ void store_plain_tile(const GroupEntry& entry, int64_t row, int64_t col,
                                                 char* strip, const float (&acc)[4][8][4]) {
  constexpr int kPitchBytes = 144;
  static_assert(16 * kPitchBytes <= kStripBytes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto alpha = static_cast<float>(entry.alpha);
  const int64_t stride = entry.d_row_stride;
  const int rows_left = static_cast<int>(min(entry.m - row, int64_t{64})) - lane / 8;
  const bool inside = col + lane % 8 * 8 < entry.n;
  T* d = reinterpret_cast<T*>(entry.d) + (row + lane / 8) * stride + col + lane % 8 * 8;
  auto* to = reinterpret_cast<uint32_t*>(strip + lane / 4 * kPitchBytes) + lane % 4;
  const char* from = strip + lane / 8 * kPitchBytes + lane % 8 * 16;
#pragma unroll
  for (int mi = 0; mi < 4; ++mi) {
    __syncwarp();  // the rows before these have been read
#pragma unroll
    for (int ni = 0; ni < 8; ++ni) {
      const float(&sums)[4] = acc[mi][ni];
      to[4 * ni] = pack_pair<T>(sums[0] * alpha, sums[1] * alpha);
      to[4 * ni + 8 * kPitchBytes / 4] = pack_pair<T>(sums[2] * alpha, sums[3] * alpha);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 line = *reinterpret_cast<const uint4*>(from + 4 * i * kPitchBytes);
      const int below = 16 * mi + 4 * i;
      if (inside && below < rows_left) *reinterpret_cast<uint4*>(d + below * stride) = line;
    }
  }
}

}  // namespace cadre::sm80
