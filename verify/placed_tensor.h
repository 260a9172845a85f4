// The matrices of an operand, laid out in one guarded buffer as a Layout says.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cadre/tensor.h"
#include "verify/case.h"
#include "verify/memory.h"
#include "verify/random.h"

namespace cadre::verify {

/// Integers as GroupSizes want them, on the host or in `memory`.
class IndexArray {
 public:
  IndexArray(Memory& memory, const std::vector<int64_t>& values, DType dtype,
             GroupSizesKind kind = GroupSizesKind::kSizes);
  GroupSizes sizes() const;
  void upload() { buffer_->upload(); }

 private:
  std::unique_ptr<GuardedBuffer> buffer_;
  DType dtype_;
  int64_t count_;
  Device device_;
  GroupSizesKind kind_;
};

struct MatrixShape {
  int64_t rows;
  int64_t cols;
};

/// Everything starts as poison, what lies between and around the elements included. Elements are
/// set one by one and read back, by matrix, row and column, before and after the call.
class PlacedTensor {
 public:
  /// `index_memory` holds pointer lists and per-group extents: the host's, or `memory` itself.
  /// `shape_of_none` is declared when there is no matrix at all.
  PlacedTensor(Memory& memory, Memory& index_memory, DType dtype, std::vector<MatrixShape> shapes,
               MatrixShape shape_of_none, const Layout& layout, Random& random);

  DType dtype() const { return dtype_; }
  const std::vector<MatrixShape>& shapes() const { return shapes_; }

  void set(int64_t matrix, int64_t row, int64_t col, double value);
  double before(int64_t matrix, int64_t row, int64_t col) const;
  double after(int64_t matrix, int64_t row, int64_t col) const;
  /// Marks an element as one the call may write.
  void allow_change(int64_t matrix, int64_t row, int64_t col);
  /// True when no byte changed at all.
  bool unchanged() const { return buffer_->unchanged(); }
  /// False, and where, when a byte changed that wasn't allowed to.
  bool untouched_elsewhere(int64_t* offset_bytes) const;
  const std::vector<std::byte>& all_bytes_after() const { return buffer_->all_after(); }
  /// Bytes of one element after the call, for comparisons bit by bit.
  std::vector<std::byte> bytes_after(int64_t matrix, int64_t row, int64_t col) const;

  void upload();
  void download() { buffer_->download(); }

  /// The operand as an op takes it. A list of matrices with different row counts gets `max_rows`
  /// as its rows when that isn't negative, per-group extents otherwise.
  GroupedTensor tensor(int64_t max_rows = -1) const;
  /// The only matrix, as a view of rank 2, or of rank 1 where it has one row.
  TensorView matrix_view() const;
  TensorView vector_view() const;

 private:
  int64_t index_of(int64_t matrix, int64_t row, int64_t col) const;
  void* address_of(int64_t matrix) const;
  int64_t row_stride(size_t matrix) const;
  bool uniform() const;
  void place(Random& random);

  Memory& memory_;
  Memory& index_memory_;
  DType dtype_;
  std::vector<MatrixShape> shapes_;
  MatrixShape shape_of_none_;
  Layout layout_;
  int64_t row_stride_ = 0;
  bool contiguous_ = false;  ///< each matrix of its own row stride, its cols
  int64_t col_stride_ = 1;
  int64_t group_stride_ = 0;
  std::vector<int64_t> begins_;  ///< element [0, 0] of each matrix, from the buffer's begin
  int64_t total_elements_ = 0;
  std::unique_ptr<GuardedBuffer> buffer_;
  std::vector<bool> may_change_;
  std::unique_ptr<GuardedBuffer> pointers_;
  std::unique_ptr<IndexArray> rows_, cols_, offsets_;
};

}  // namespace cadre::verify
