// Index tensors of the row ops on the device.
#pragma once

#include <cstdint>

#include "cadre/tensor.h"
#include "cuda/status_word.cuh"

namespace cadre::rows {

/// A view of integers of rank 1 or 2; plain, so that it travels as a kernel parameter.
struct IndexView {
  void* data = nullptr;
  DType dtype = DType::kI32;
  int64_t row_stride = 0;
  int64_t col_stride = 0;

  static IndexView of(const TensorView& view) {
    return {view.data, view.dtype, view.strides[0], view.rank == 2 ? view.strides[1] : 0};
  }

  __device__ __forceinline__ int64_t at(int64_t row, int64_t col = 0) const {
    const int64_t i = row * row_stride + col * col_stride;
    switch (dtype) {
      case DType::kU32:
        return static_cast<const uint32_t*>(data)[i];
      case DType::kI8:
        return static_cast<const int8_t*>(data)[i];
      case DType::kU8:
        return static_cast<const uint8_t*>(data)[i];
      case DType::kI16:
        return static_cast<const int16_t*>(data)[i];
      case DType::kU16:
        return static_cast<const uint16_t*>(data)[i];
      case DType::kI32:
        return static_cast<const int32_t*>(data)[i];
      default:  // i64, and u64, whose upper half reads as negative
        return static_cast<const int64_t*>(data)[i];
    }
  }

  /// i32 and i64 alone.
  __device__ __forceinline__ int64_t row_at(int64_t row, int64_t col = 0) const {
    const int64_t i = row * row_stride + col * col_stride;
    return dtype == DType::kI64 ? static_cast<const int64_t*>(data)[i]
                                : static_cast<const int32_t*>(data)[i];
  }
  __device__ __forceinline__ void set(int64_t row, int64_t col, int64_t value) const {
    const int64_t i = row * row_stride + col * col_stride;
    if (dtype == DType::kI64) {
      static_cast<int64_t*>(data)[i] = value;
    } else {
      static_cast<int32_t*>(data)[i] = static_cast<int32_t>(value);
    }
  }
};

/// `index` where it lies in [0, limit), else -1; anything but -1 outside is a fault.
__device__ __forceinline__ int64_t checked_row(int64_t index, int64_t limit, int32_t* fault) {
  if (index >= 0 && index < limit) return index;
  if (index != -1) cuda::report_fault(fault, plan::DeviceFault::kRowIndex);
  return -1;
}

}  // namespace cadre::rows
