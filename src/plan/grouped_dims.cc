// Dims and positions of the matrices of a GroupedTensor.
#include "plan/grouped_dims.h"

#include <algorithm>

#include "plan/group_offsets.h"

namespace cadre::plan {

bool on_device(const Extent& extent) {
  return extent.varies() && extent.per_group.device.kind == DeviceKind::kCuda;
}

int64_t value_of(const Extent& extent, int64_t group) {
  return extent.varies() ? read_index(extent.per_group.data, extent.per_group.dtype, group)
                         : extent.uniform;
}

int64_t largest(const Extent& extent) {
  if (on_device(extent)) return extent.max;
  if (!extent.varies()) return extent.uniform;
  int64_t most = 0;
  for (int64_t i = 0; i < extent.per_group.count; ++i) most = std::max(most, value_of(extent, i));
  return most;
}

MatrixDims dims_of(const GroupedTensor& tensor, int64_t group) {
  return {value_of(tensor.rows, group), value_of(tensor.cols, group)};
}

int64_t row_stride_of(const GroupedTensor& tensor, const MatrixDims& dims) {
  return tensor.contiguous ? dims.cols : tensor.row_stride;
}

int64_t packed_begin(const GroupedTensor& tensor, int64_t group, int64_t next) {
  return tensor.offsets.varies() ? value_of(tensor.offsets, group) : next;
}

int64_t packed_elements(const GroupedTensor& tensor, const MatrixDims& dims) {
  if (dims.rows == 0 || dims.cols == 0) return 0;
  return (dims.rows - 1) * row_stride_of(tensor, dims) + (dims.cols - 1) * tensor.col_stride + 1;
}

}  // namespace cadre::plan
