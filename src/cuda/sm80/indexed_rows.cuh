// Rows by index, as the loaders find them: where a row of the product lies in memory. An index out
// of range is reported and its row is one of zeros; nothing is read for it.
#pragma once

#include <cstdint>

#include "cuda/sm80/arguments.h"
#include "cuda/status_word.cuh"

namespace cadre::sm80 {

/// The rows of a tile of gmm.
struct IndexedRows {
  const RowIndexArguments& index;
  int64_t first;  ///< of them, among the product's rows

  static constexpr int32_t kNone = INT32_MAX;  ///< the row of no line; no operand has as many

  /// What the index says of a line.
  __device__ __forceinline__ int64_t read(int64_t line) const {
    const int64_t i = (first + line) * index.stride;
    return index.is_i64 ? static_cast<const int64_t*>(index.data)[i]
                        : static_cast<const int32_t*>(index.data)[i];
  }

  /// The row that was read; kNone: zeros.
  __device__ __forceinline__ static int32_t checked(const RowIndexArguments& index, int64_t row) {
    if (row >= 0 && row < index.limit) return static_cast<int32_t>(row);
    if (row != -1) cuda::report_fault(index.fault, plan::DeviceFault::kRowIndex);
    return kNone;
  }

  __device__ __forceinline__ int32_t at(int64_t line) const { return checked(index, read(line)); }
};

/// The rows that a group of tgmm sums over. One of the operands may have no index, and so the
/// product's own rows.
struct RowsAlongK {
  const RowIndexArguments& index;
  int64_t first;

  __device__ __forceinline__ int64_t read(int64_t line) const {
    return index.data == nullptr ? first + line : IndexedRows{index, first}.read(line);
  }
  __device__ __forceinline__ int32_t at(int64_t line) const {
    return IndexedRows::checked(index, read(line));
  }
};

}  // namespace cadre::sm80
