// Copies of a few rows at a time, small enough to be packed out of the nearest cache.
#include "cpu/row_gather.h"

#include <algorithm>
#include <cstring>

#include "cpu/panel_sizes.h"
#include "plan/group_offsets.h"

namespace cadre::cpu {
namespace {

/// k values of a panel that are copied at a time: whole steps of every kernel.
constexpr int64_t kGatheredK = 64;
/// Of the widest panels: 32 columns of 4 bytes, 16 of 8.
constexpr int64_t kGatheredBytes = kGatheredK * 128;

MatrixRef transposed(const MatrixRef& m) { return {m.data, m.dtype, m.col_stride, m.row_stride}; }

}  // namespace

MatrixRef gather_rows(const MatrixRef& matrix, const RowIndex& index, const Rectangle& part,
                      char* memory) {
  const size_t size = size_of(matrix.dtype);
  char* to = memory;
  for (int64_t i = part.row; i < part.row + part.rows; ++i) {
    const int64_t row = plan::read_index(index.data, index.dtype, i * index.stride);
    if (row < 0) {
      std::memset(to, 0, static_cast<size_t>(part.cols) * size);
      to += static_cast<size_t>(part.cols) * size;
      continue;
    }
    if (matrix.col_stride == 1) {
      std::memcpy(to, element_at(matrix, row, part.col), static_cast<size_t>(part.cols) * size);
      to += static_cast<size_t>(part.cols) * size;
      continue;
    }
    for (int64_t j = part.col; j < part.col + part.cols; ++j, to += size)
      std::memcpy(to, element_at(matrix, row, j), size);
  }
  return {memory, matrix.dtype, part.cols, 1};
}

MatrixRef gather_cols(const MatrixRef& matrix, const RowIndex& index, const Rectangle& part,
                      char* memory) {
  return transposed(
      gather_rows(transposed(matrix), index, {part.col, part.row, part.cols, part.rows}, memory));
}

void pack_panel_of(const GemmKernel& kernel, const MatrixRef& b, const RowIndex& rows,
                   const RowIndex& cols, const Rectangle& panel, char* dst, int64_t ahead_bytes) {
  if (!rows.given() && !cols.given()) {
    return kernel.pack_b(part(b, panel.row, panel.col), panel.rows, panel.cols, dst, ahead_bytes);
  }
  alignas(64) char memory[kGatheredBytes];
  for (int64_t done = 0; done < panel.rows; done += kGatheredK) {
    const Rectangle gathered{panel.row + done, panel.col, std::min(kGatheredK, panel.rows - done),
                             panel.cols};
    const MatrixRef copy = rows.given() ? gather_rows(b, rows, gathered, memory)
                                        : gather_cols(b, cols, gathered, memory);
    kernel.pack_b(copy, gathered.rows, gathered.cols,
                  dst + granules_of(kernel, done) * b_granule_bytes(kernel), 0);
  }
}

}  // namespace cadre::cpu
