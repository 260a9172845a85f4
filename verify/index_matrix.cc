// Indices in a guarded buffer. All machines here are little-endian: the low bytes come first.
#include "verify/index_matrix.h"

#include <cstring>

#include "plan/group_offsets.h"

namespace cadre::verify {

IndexMatrix::IndexMatrix(Memory& memory, DType dtype, int64_t rows, int64_t cols, Strides strides)
    : dtype_(dtype), rows_(rows), cols_(cols), strides_(strides), device_(memory.device()) {
  const auto elements = static_cast<size_t>(rows * row_stride());
  buffer_ = std::make_unique<GuardedBuffer>(memory, elements * size_of(dtype), poison_of(dtype));
}

void IndexMatrix::set(int64_t row, int64_t col, int64_t value) {
  std::memcpy(buffer_->before() + offset_bytes(row, col), &value, size_of(dtype_));
}

int64_t IndexMatrix::before(int64_t row, int64_t col) const {
  return plan::read_index(buffer_->before() + offset_bytes(row, col), dtype_, 0);
}

int64_t IndexMatrix::after(int64_t row, int64_t col) const {
  return plan::read_index(buffer_->after() + offset_bytes(row, col), dtype_, 0);
}

bool IndexMatrix::untouched_elsewhere() const {
  std::vector<bool> may_change(buffer_->size_bytes(), false);
  for (int64_t row = 0; row < rows_; ++row) {
    for (int64_t col = 0; col < cols_; ++col) {
      const size_t begin = offset_bytes(row, col);
      for (size_t i = 0; i < size_of(dtype_); ++i) may_change[begin + i] = true;
    }
  }
  int64_t where = 0;
  return !buffer_->first_change(may_change, &where);
}

TensorView IndexMatrix::view() const {
  return TensorView::strided(buffer_->data(), dtype_, {rows_, cols_},
                             {row_stride(), strides_.col_stride}, device_);
}

TensorView IndexMatrix::vector_view() const {
  return TensorView::strided(buffer_->data(), dtype_, {rows_}, {row_stride()}, device_);
}

}  // namespace cadre::verify
