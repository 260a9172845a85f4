// A matrix of indices in a guarded buffer, for the ops that read or write row indices.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cadre/tensor.h"
#include "verify/memory.h"

namespace cadre::verify {

class IndexMatrix {
 public:
  /// Everything starts as poison. Columns lie `col_stride` elements apart, rows `row_padding`
  /// elements behind each other.
  struct Strides {
    int64_t col_stride = 1;
    int64_t row_padding = 0;
  };
  IndexMatrix(Memory& memory, DType dtype, int64_t rows, int64_t cols, Strides strides = {1, 0});

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  void set(int64_t row, int64_t col, int64_t value);
  int64_t before(int64_t row, int64_t col) const;
  int64_t after(int64_t row, int64_t col) const;

  void upload() { buffer_->upload(); }
  void download() { buffer_->download(); }
  bool unchanged() const { return buffer_->unchanged(); }
  /// No byte between or around the elements changed.
  bool untouched_elsewhere() const;
  const std::vector<std::byte>& all_bytes_after() const { return buffer_->all_after(); }

  /// [rows, cols], and [rows] of a matrix of one column.
  TensorView view() const;
  TensorView vector_view() const;

 private:
  int64_t row_stride() const { return cols_ * strides_.col_stride + strides_.row_padding; }
  size_t offset_bytes(int64_t row, int64_t col) const {
    return static_cast<size_t>(row * row_stride() + col * strides_.col_stride) * size_of(dtype_);
  }

  DType dtype_;
  int64_t rows_, cols_;
  Strides strides_;
  Device device_;
  std::unique_ptr<GuardedBuffer> buffer_;
};

}  // namespace cadre::verify
