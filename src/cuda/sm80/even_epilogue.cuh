// The results of an even tile (even_kernel.cuh), in few instructions: beside a sum of 512 terms
// every one of them counts.
#pragma once

#include <cstdint>

#include "cuda/ptx/global_store.cuh"
#include "cuda/sm80/even_rows.cuh"
#include "cuda/sm80/plain_epilogue.cuh"

namespace cadre::sm80 {

/// A warp's slices of 16 rows and 64 columns, 32 rows apart; (row, col) is the place of the first
/// one in the group's D, which has `rows_left` rows for them, `strip` the warp's own shared memory.
/// A slice at a time passes through it, 144 bytes a row (so that neither the writes nor the reads
/// meet a bank twice), and leaves as whole lines of 128 bytes.
template <typename T>
__device__ __forceinline__ void store_even_tile(const GroupEntry& entry, int row, int col,
                                                int rows_left, char* strip,
                                                float (&sums)[EvenShape::kSlices][8][4]) {
  constexpr int kPitchBytes = 144;
  static_assert(16 * kPitchBytes <= kStripBytes);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (const auto alpha = static_cast<float>(entry.alpha); alpha != 1) {
#pragma unroll
    for (int i = 0; i < EvenShape::kSlices * 32; ++i) sums[i / 32][i / 4 % 8][i % 4] *= alpha;
  }
  const auto row_bytes = static_cast<uint32_t>(entry.d_row_stride) * 2;
  const int below = rows_left - lane / 8;
  char* d = entry.d + uint64_t{row_bytes} * static_cast<uint32_t>(row + lane / 8) +
            (int64_t{col} + lane % 8 * 8) * 2;
  auto* to = reinterpret_cast<uint32_t*>(strip + lane / 4 * kPitchBytes) + lane % 4;
  const char* from = strip + lane / 8 * kPitchBytes + lane % 8 * 16;
#pragma unroll
  for (int slice = 0; slice < EvenShape::kSlices; ++slice) {
    if (slice * EvenShape::kSliceRows >= rows_left) break;
    __syncwarp();  // the slice before has been read
#pragma unroll
    for (int ni = 0; ni < 8; ++ni) {
      const float(&four)[4] = sums[slice][ni];
      to[4 * ni] = pack_pair<T>(four[0], four[1]);
      to[4 * ni + 8 * kPitchBytes / 4] = pack_pair<T>(four[2], four[3]);
    }
    __syncwarp();
    uint4 lines[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      lines[i] = *reinterpret_cast<const uint4*>(from + 4 * i * kPitchBytes);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = EvenShape::kSliceRows * slice + 4 * i;
      ptx::store_global_16_below(d + uint64_t{row_bytes} * static_cast<uint32_t>(at), lines[i], at,
                                 below);
    }
  }
}

}  // namespace cadre::sm80
