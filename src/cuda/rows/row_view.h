// Matrices of the row ops as kernel parameters.
#pragma once

#include <cstdint>

#include "cadre/tensor.h"

namespace cadre::rows {

/// Rows of consecutive elements, each beginning at a multiple of 16 bytes.
inline bool in_vectors(const TensorView& view) {
  const auto size = static_cast<int64_t>(size_of(view.dtype));
  return view.strides[1] == 1 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
         view.strides[0] * size % 16 == 0;
}

struct RowView {
  char* data = nullptr;  ///< null: not given
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  DType dtype = DType::kF32;
  bool vectors = false;

  static RowView of(const TensorView& view) {
    if (!view.given()) return {};
    return {static_cast<char*>(view.data), view.strides[0], view.strides[1], view.dtype,
            in_vectors(view)};
  }
};

}  // namespace cadre::rows
