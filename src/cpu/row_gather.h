// Rows by index are copied, a few at a time, to where they lie next to each other, and packed
// from there: kernels see strides alone, and the packed bytes are those of rows copied before.
#pragma once

#include <cstdint>

#include "cpu/gemm_item.h"
#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

/// Element [0, 0] of a part, and its size.
struct Rectangle {
  int64_t row, col, rows, cols;
};

/// A part of a matrix whose rows are taken by index, copied to `memory`.
MatrixRef gather_rows(const MatrixRef& matrix, const RowIndex& index, const Rectangle& part,
                      char* memory);
/// The same for columns.
MatrixRef gather_cols(const MatrixRef& matrix, const RowIndex& index, const Rectangle& part,
                      char* memory);

/// Packs one panel of B, its rows or its columns by index (or neither), as GemmKernel::pack_b does.
void pack_panel_of(const GemmKernel& kernel, const MatrixRef& b, const RowIndex& rows,
                   const RowIndex& cols, const Rectangle& part, char* dst, int64_t ahead_bytes);

}  // namespace cadre::cpu
