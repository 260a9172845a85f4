// Zeroes the rows of D that no local group covers: those before the first group and those behind
// the last.
#pragma once

#include <cstdint>

#include "cuda/sm80/arguments.h"

namespace cadre::sm80 {

template <typename Word>
__device__ __forceinline__ void zero_row(char* row, int64_t words, int64_t stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int64_t i = lane; i < words; i += 32) reinterpret_cast<Word*>(row)[i * stride] = Word{};
}

/// All warps of the grid share the rows.
__device__ __forceinline__ void zero_uncovered_rows(const ProductArguments& args) {
  if (args.zero_outside == nullptr) return;
  const int element_bytes = args.zero_element_bytes;
  const int64_t begin = args.zero_outside[0];
  const int64_t end = args.zero_outside[args.num_groups];
  const int64_t rows = begin + args.zero_rows - end;
  const int64_t warps = int64_t{gridDim.x} * (blockDim.x / 32);
  const int64_t warp = int64_t{blockIdx.x} * (blockDim.x / 32) + threadIdx.x / 32;
  for (int64_t i = warp; i < rows; i += warps) {
    const int64_t row = i < begin ? i : i - begin + end;
    char* data = args.zero_data + row * args.zero_row_stride * element_bytes;
    const int64_t bytes = args.zero_cols * element_bytes;
    if (args.d_col_stride == 1 && reinterpret_cast<uint64_t>(data) % 16 == 0) {
      zero_row<uint4>(data, bytes / 16, 1);
      zero_row<uint16_t>(data + bytes / 16 * 16, bytes % 16 / 2, 1);
    } else if (element_bytes == 2) {
      zero_row<uint16_t>(data, args.zero_cols, args.d_col_stride);
    } else if (element_bytes == 4) {
      zero_row<uint32_t>(data, args.zero_cols, args.d_col_stride);
    } else {
      zero_row<uint64_t>(data, args.zero_cols, args.d_col_stride);
    }
  }
}

}  // namespace cadre::sm80
