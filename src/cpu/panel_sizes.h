// Sizes that follow from a kernel's tile: granules, packed panels and tiles of sums, in bytes.
#pragma once

#include <cstdint>

#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// Granules of k values, with the zeros that fill the last step.
inline int64_t granules_of(const GemmKernel& kernel, int64_t k) {
  return ceil_div(round_up(k, kernel.k_step), kernel.granule_k);
}
/// One packed row of A, and all rows of a tile.
inline int64_t a_row_bytes(const GemmKernel& kernel) {
  return kPackedRowStride * kernel.granule_bytes;
}
inline int64_t a_tile_bytes(const GemmKernel& kernel) { return kernel.mr * a_row_bytes(kernel); }
/// A row of granules of a packed panel of B.
inline int64_t b_granule_bytes(const GemmKernel& kernel) {
  return int64_t{kernel.nr} * kernel.granule_bytes;
}
/// The sums of one row of a panel, and of a tile.
inline int64_t acc_row_bytes(const GemmKernel& kernel) {
  return int64_t{kernel.nr} * static_cast<int64_t>(size_of(kernel.acc_dtype));
}
inline int64_t acc_tile_bytes(const GemmKernel& kernel) {
  return kernel.mr * acc_row_bytes(kernel);
}

}  // namespace cadre::cpu
