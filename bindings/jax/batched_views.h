// Views of the buffers XLA passes: an operand [batch..., dims...] is read one batch entry at a
// time, and a batch dim of size 1 is broadcast. Row-major throughout, as XLA was told.
#pragma once

#include <cstdint>
#include <vector>

#include "cadre/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace cadre_jax {

namespace ffi = xla::ffi;

/// 0 for a type cadre doesn't have.
inline cadre_dtype dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F64:
      return CADRE_F64;
    case ffi::DataType::F32:
      return CADRE_F32;
    case ffi::DataType::BF16:
      return CADRE_BF16;
    case ffi::DataType::F16:
      return CADRE_F16;
    case ffi::DataType::S8:
      return CADRE_I8;
    case ffi::DataType::S32:
      return CADRE_I32;
    case ffi::DataType::S64:
      return CADRE_I64;
    case ffi::DataType::U32:
      return CADRE_U32;
    case ffi::DataType::S16:
      return CADRE_I16;
    case ffi::DataType::U8:
      return CADRE_U8;
    case ffi::DataType::U16:
      return CADRE_U16;
    case ffi::DataType::U64:
      return CADRE_U64;
    case ffi::DataType::F8E4M3FN:
      return CADRE_E4M3;
    case ffi::DataType::F8E5M2:
      return CADRE_E5M2;
    case ffi::DataType::F8E8M0FNU:
      return CADRE_E8M0;
    default:
      return 0;
  }
}

/// One operand or result with `batch_rank` leading batch dims.
class BatchedView {
 public:
  BatchedView(ffi::AnyBuffer buffer, int64_t batch_rank, cadre_device device)
      : device_(device), dtype_(dtype_of(buffer.element_type())), data_(buffer.untyped_data()) {
    const auto dims = buffer.dimensions();
    const auto split = static_cast<size_t>(batch_rank);
    batch_.assign(dims.begin(), dims.begin() + split);
    shape_.assign(dims.begin() + split, dims.end());
    for (int64_t dim : shape_) entry_elements_ *= dim;
  }

  const std::vector<int64_t>& batch() const { return batch_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  cadre_dtype dtype() const { return dtype_; }

  /// Address of the entry at `index` of the batch dims `whole`.
  void* data_at(int64_t index, const std::vector<int64_t>& whole) const {
    int64_t entry = 0;
    int64_t stride = 1;
    for (size_t i = whole.size(); i-- > 0;) {
      const int64_t position = index % whole[i];
      index /= whole[i];
      if (batch_[i] != 1) entry += position * stride;
      stride *= batch_[i];
    }
    const auto bytes = static_cast<int64_t>(cadre_dtype_size(dtype_));
    return static_cast<char*>(data_) + entry * entry_elements_ * bytes;
  }

  cadre_tensor tensor_at(int64_t index, const std::vector<int64_t>& whole) const {
    return cadre_tensor_contiguous(data_at(index, whole), dtype_,
                                   static_cast<int32_t>(shape_.size()), shape_.data(), device_);
  }

 private:
  cadre_device device_;
  cadre_dtype dtype_;
  void* data_;
  std::vector<int64_t> batch_;
  std::vector<int64_t> shape_;
  int64_t entry_elements_ = 1;
};

inline int64_t entries(const std::vector<int64_t>& batch) {
  int64_t count = 1;
  for (int64_t dim : batch) count *= dim;
  return count;
}

}  // namespace cadre_jax
