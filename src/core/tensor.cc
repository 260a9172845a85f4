// Construction of views.
#include "cadre/tensor.h"

#include <algorithm>
#include <array>

#include "cadre/scaled_tensor.h"

namespace cadre {
namespace {

void set_dims(TensorView& view, std::initializer_list<int64_t> shape) {
  view.rank = static_cast<int32_t>(shape.size());
  const auto kept = std::min<size_t>(shape.size(), kMaxRank);
  std::copy_n(shape.begin(), kept, view.shape.begin());
}

/// A view whose rank has no form: kAbsent, but with a dtype, which makes it given.
void reject(GroupedTensor& tensor, const TensorView& view) {
  tensor.placement = Placement::kAbsent;
  tensor.rank = view.rank;
  tensor.shape = view.shape;
}

}  // namespace

TensorView TensorView::contiguous(const void* data, DType dtype,
                                  std::initializer_list<int64_t> shape, Device device) {
  TensorView view{.data = const_cast<void*>(data), .dtype = dtype, .device = device};
  set_dims(view, shape);
  int64_t stride = 1;
  for (int32_t i = std::min(view.rank, kMaxRank) - 1; i >= 0; --i) {
    view.strides[static_cast<size_t>(i)] = stride;
    // A huge shape may wrap here; the ops check the extent of what they are given.
    stride = static_cast<int64_t>(static_cast<uint64_t>(stride) *
                                  static_cast<uint64_t>(view.shape[static_cast<size_t>(i)]));
  }
  return view;
}

TensorView TensorView::strided(const void* data, DType dtype, std::initializer_list<int64_t> shape,
                               std::initializer_list<int64_t> strides, Device device) {
  TensorView view{.data = const_cast<void*>(data), .dtype = dtype, .device = device};
  set_dims(view, shape);
  if (strides.size() != shape.size()) view.rank = kMaxRank + 1;  // every op rejects this rank
  std::copy_n(strides.begin(), std::min<size_t>(strides.size(), kMaxRank), view.strides.begin());
  return view;
}

GroupedTensor::GroupedTensor(const TensorView& view) {
  if (!view.given()) return;
  dtype = view.dtype;
  device = view.device;
  data = view.data;
  if (view.rank == 2) {
    placement = Placement::kRows;
    rows = view.shape[0];
    cols = view.shape[1];
    row_stride = view.strides[0];
    col_stride = view.strides[1];
  } else if (view.rank == 3) {
    placement = Placement::kStacked;
    num_groups = view.shape[0];
    rows = view.shape[1];
    cols = view.shape[2];
    group_stride = view.strides[0];
    row_stride = view.strides[1];
    col_stride = view.strides[2];
  } else {
    reject(*this, view);
  }
}

GroupedTensor GroupedTensor::list(void* const* pointers, int64_t num_groups, const TensorView& like,
                                  Device pointers_device) {
  GroupedTensor tensor(like);
  tensor.placement = Placement::kList;
  tensor.data = nullptr;
  tensor.num_groups = num_groups;
  tensor.pointers = pointers;
  tensor.pointers_device = pointers_device;
  if (like.rank == 1) {  // a list of vectors: matrices of one row
    tensor.rows = 1;
    tensor.cols = like.shape[0];
    tensor.row_stride = 0;
    tensor.col_stride = like.strides[0];
  }
  return tensor;
}

GroupedTensor GroupedTensor::packed(void* data, DType dtype, int64_t num_groups, Extent rows,
                                    Extent cols, int64_t capacity, Device device) {
  GroupedTensor tensor;
  tensor.placement = Placement::kPacked;
  tensor.dtype = dtype;
  tensor.device = device;
  tensor.num_groups = num_groups;
  tensor.data = data;
  tensor.rows = rows;
  tensor.cols = cols;
  tensor.contiguous = true;
  tensor.capacity = capacity;
  return tensor;
}

GroupedTensor GroupedTensor::vectors(const TensorView& view) {
  GroupedTensor tensor(view);
  if (view.rank != 2) {
    reject(tensor, view);
    return tensor;
  }
  tensor.placement = Placement::kStacked;
  tensor.num_groups = view.shape[0];
  tensor.rows = 1;
  tensor.group_stride = view.strides[0];
  tensor.row_stride = 0;
  return tensor;
}

namespace {
constexpr std::array<std::string_view, 5> kScaleModes = {"none", "tensor", "row", "block_128",
                                                         "mx"};
}

std::string_view name_of(ScaleMode mode) {
  const auto index = static_cast<size_t>(mode);
  return index < kScaleModes.size() ? kScaleModes[index] : "invalid";
}

bool scale_mode_from_name(std::string_view name, ScaleMode* mode) {
  const auto* found = std::find(kScaleModes.begin(), kScaleModes.end(), name);
  if (found == kScaleModes.end()) return false;
  *mode = static_cast<ScaleMode>(found - kScaleModes.begin());
  return true;
}

}  // namespace cadre
