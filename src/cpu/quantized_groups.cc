// Addresses of codes and scales by group.
#include "cpu/quantized_groups.h"

#include <algorithm>
#include <limits>

#include "core/convert.h"
#include "plan/group_offsets.h"

namespace cadre::cpu {
namespace {

/// One block for all indices.
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

int64_t block_or_all(ScaleMode mode) {
  const int64_t block = plan::inner_block_of(mode);
  return block == 0 ? kAll : block;
}

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

MatrixRef transposed(const MatrixRef& matrix) {
  return {matrix.data, matrix.dtype, matrix.col_stride, matrix.row_stride};
}

char* scale_address(const Scales& scales, int64_t index) {
  return static_cast<char*>(scales.values.data) +
         index * static_cast<int64_t>(size_of(scales.values.dtype));
}

/// Scales with the outer dim along the source's rows.
GroupScales scales_of(const Scales& scales, const plan::ScaleForm& form, int64_t first) {
  const bool all = form.mode == ScaleMode::kTensor;
  return {.data = scale_address(scales, first),
          .dtype = scales.values.dtype,
          .row_block = all ? kAll : form.outer_block,
          .col_block = block_or_all(form.mode),
          .row_stride = form.outer_stride,
          .col_stride = form.inner_stride};
}

}  // namespace

float GroupScales::at(int64_t row, int64_t col) const {
  return static_cast<float>(load_as_double(data, dtype, index(row, col)));
}

void GroupScales::set(int64_t row, int64_t col, float scale) const {
  store_rounded(data, dtype, index(row, col), static_cast<double>(scale));
}

void GroupScales::read(int64_t row, int64_t col, int64_t cols, float* to) const {
  for (int64_t c = 0; c < cols;) {
    const int64_t count = std::min(col_block, cols - c);
    std::fill_n(to + c, count, at(row, col + c));
    c += count;
  }
}

QuantizedGroups::QuantizedGroups(const plan::Problem& problem, const TensorView& x,
                                 const GroupSizes& sizes)
    : weights_(x.rank == 3) {
  if (weights_) {
    for (int64_t i = 0; i < problem.num_groups; ++i) add_group(x.shape[1]);
  } else if (sizes.data == nullptr && sizes.count == 0) {
    add_group(problem.m);
  } else {
    int64_t begin = 0;
    for (int64_t i = 0; i < sizes.count; ++i) {
      const int64_t value = plan::read_index(sizes.data, sizes.dtype, i);
      const int64_t rows = sizes.kind == GroupSizesKind::kEnds ? value - begin : value;
      add_group(rows);
      begin += rows;
    }
  }
}

void QuantizedGroups::add_group(int64_t rows) {
  offsets_.push_back(offsets_.back() + rows);
  first_slice_.push_back(first_slice_.back() + blocks_of(rows, kColumnAlignment));
  first_band_.push_back(first_band_.back() + blocks_of(rows, kBandRows));
}

QuantizedGroups::Band QuantizedGroups::band(int64_t index) const {
  const auto after = std::upper_bound(first_band_.begin(), first_band_.end(), index);
  const int64_t group = after - first_band_.begin() - 1;
  const int64_t row = (index - first_band_[static_cast<size_t>(group)]) * kBandRows;
  return {group, row, std::min(rows(group) - row, kBandRows)};
}

MatrixRef QuantizedGroups::plain(const TensorView& view, int64_t group) const {
  if (!view.given()) return {};
  const size_t first = weights_ ? 1 : 0;
  MatrixRef matrix{view.data, view.dtype, view.strides[first], view.strides[first + 1]};
  const int64_t from = weights_ ? group * view.strides[0] : begin(group) * view.strides[0];
  matrix.data = static_cast<char*>(view.data) + from * static_cast<int64_t>(size_of(view.dtype));
  return matrix;
}

GroupCodes QuantizedGroups::in_rows(const ScaledTensor& tensor, const plan::ScaleForm& form,
                                    int64_t group) const {
  if (!tensor.given()) return {};
  const int64_t first = weights_ ? group * form.group_stride : begin(group) * form.outer_stride;
  return {plain(tensor, group), scales_of(tensor.scales, form, first)};
}

GroupCodes QuantizedGroups::in_columns(const ScaledTensor& tensor, const plan::ScaleForm& form,
                                       int64_t group) const {
  if (!tensor.given()) return {};
  GroupCodes copy;
  int64_t first = group * form.group_stride;
  if (weights_) {
    copy.codes = transposed(plain(tensor, group));
  } else {
    const auto i = static_cast<size_t>(group);
    const int64_t slice = first_slice_[i];
    copy.codes = {static_cast<char*>(tensor.data) + slice * kColumnAlignment * tensor.strides[1],
                  tensor.dtype, tensor.strides[1], tensor.strides[0]};
    copy.pads = true;
    if (form.mode == ScaleMode::kBlock128) first = first_band_[i] * form.inner_stride;
    if (form.mode == ScaleMode::kMx) first = slice * form.inner_stride;
  }
  copy.scales = scales_of(tensor.scales, form, first);
  std::swap(copy.scales.row_block, copy.scales.col_block);
  std::swap(copy.scales.row_stride, copy.scales.col_stride);
  return copy;
}

}  // namespace cadre::cpu
