// Typed access to the views of the row ops, one element at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "cadre/combine.h"
#include "cadre/tensor.h"
#include "core/convert.h"
#include "plan/group_offsets.h"

namespace cadre::cpu {

inline int64_t index_at(const TensorView& view, int64_t i) {
  return plan::read_index(view.data, view.dtype, i * view.strides[0]);
}
inline int64_t index_at(const TensorView& view, int64_t i, int64_t j) {
  return plan::read_index(view.data, view.dtype, i * view.strides[0] + j * view.strides[1]);
}

/// Into a view of i32 or i64.
inline void set_index(const TensorView& view, int64_t offset, int64_t value) {
  if (view.dtype == DType::kI64) {
    std::memcpy(static_cast<int64_t*>(view.data) + offset, &value, sizeof(value));
    return;
  }
  const auto narrow = static_cast<int32_t>(value);
  std::memcpy(static_cast<int32_t*>(view.data) + offset, &narrow, sizeof(narrow));
}

inline double value_at(const TensorView& view, int64_t i, int64_t j) {
  return load_as_double(view.data, view.dtype, i * view.strides[0] + j * view.strides[1]);
}
inline void set_value(const TensorView& view, int64_t i, int64_t j, double value) {
  store_rounded(view.data, view.dtype, i * view.strides[0] + j * view.strides[1], value);
}

/// Element [i] of a vector.
inline double number_at(const TensorView& view, int64_t i) {
  return load_as_double(view.data, view.dtype, i * view.strides[0]);
}
inline void set_number(const TensorView& view, int64_t i, double value) {
  store_rounded(view.data, view.dtype, i * view.strides[0], value);
}

/// Element [i, j] as bytes.
inline char* address_at(const TensorView& view, int64_t i, int64_t j) {
  return static_cast<char*>(view.data) +
         (i * view.strides[0] + j * view.strides[1]) * static_cast<int64_t>(size_of(view.dtype));
}

/// combine_grad's dout, or a one that stands for all of it.
inline TensorView dout_or_ones(const CombineGradArgs& args) {
  static const double one = 1;
  if (args.dout.given()) return args.dout;
  const int64_t width = args.y.given() ? args.y.shape[1] : args.dy.shape[1];
  return TensorView::strided(&one, DType::kF64, {args.slot_row.shape[0], width}, {0, 0});
}

/// The slot of token `token` that names `row`; -1 if none does.
inline int64_t slot_of_row(const TensorView& slot_row, int64_t token, int64_t row) {
  for (int64_t j = 0; j < slot_row.shape[1]; ++j) {
    if (index_at(slot_row, token, j) == row) return j;
  }
  return -1;
}

}  // namespace cadre::cpu
