// Scales by their roles: the test's own reading of cadre/scaled_tensor.h.
#include "verify/scale_data.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cadre::verify {
namespace {

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

}  // namespace

ScaleData::ScaleData(const Case& c, Operand operand, Memory& memory, Memory& index_memory,
                     Random& random)
    : c_(c), mode_(operand == Operand::kLhs ? c.lhs_mode : c.rhs_mode) {
  const bool lhs = operand == Operand::kLhs;
  kind_ = c.columns(mode_)                                 ? Kind::kColumns
          : c.op == Op::kTgmm || (c.op == Op::kGmm && lhs) ? Kind::kRows
                                                           : Kind::kWeights;
  inner_block_ = mode_ == ScaleMode::kBlock128 ? 128 : mode_ == ScaleMode::kMx ? 32 : 0;
  if (kind_ == Kind::kWeights) {
    inner_first_ = lhs ? c.transpose_lhs : !c.transpose_rhs;
    const bool square = mode_ == ScaleMode::kBlock128 && (!lhs || c.lhs_square_blocks);
    outer_block_ = square ? 128 : 1;
  }
  const bool e8m0 = mode_ == ScaleMode::kMx || (mode_ == ScaleMode::kBlock128 && c.e8m0_scales);
  const DType dtype = e8m0 ? DType::kE8M0 : DType::kF32;
  Layout layout = lhs ? c.lhs_scales_layout : c.rhs_scales_layout;
  std::vector<MatrixShape> shapes;
  if (kind_ == Kind::kWeights) {
    if (layout.form == Placement::kRows) layout.form = Placement::kStacked;
    int64_t outer = lhs ? 0 : c.n, inner = c.k;
    for (const GemmDims& dims : c.dims) {
      outer = std::max(outer, lhs ? dims.m : dims.n);
      inner = std::max(inner, dims.k);
    }
    const bool one = mode_ == ScaleMode::kTensor && c.one_scale_for_all;
    shapes.assign(one ? 1 : static_cast<size_t>(c.local_groups()), shape_of(outer, inner));
  } else if (kind_ == Kind::kRows || mode_ == ScaleMode::kTensor) {
    layout.form = Placement::kRows;
    shapes = {shape_of(c.op == Op::kTgmm ? 1 : c.lhs_rows < 0 ? c.m : c.lhs_rows, c.k)};
  } else {
    layout.form = Placement::kRows;
    const auto groups = static_cast<int64_t>(c.group_sizes.size());
    int64_t lines = 0;
    for (int64_t i = 0; i < groups && inner_block_ != 0; ++i) {
      if (i >= c.group_offset) first_line_.push_back(lines);
      lines += blocks_of(c.group_sizes[static_cast<size_t>(i)], inner_block_);
    }
    shapes = {{inner_block_ == 0 ? groups : lines, lhs ? c.k : c.n}};
  }
  tensor_.emplace(memory, index_memory, dtype, shapes,
                  shapes.empty() ? shape_of(lhs ? 0 : c.n, c.k) : shapes[0], layout, random);
  fill(random);
}

MatrixShape ScaleData::shape_of(int64_t outer, int64_t inner) const {
  if (mode_ == ScaleMode::kTensor) return {1, 1};
  if (mode_ == ScaleMode::kRow) return {outer, 1};
  const int64_t outer_blocks = blocks_of(outer, outer_block_);
  const int64_t inner_blocks = blocks_of(inner, inner_block_);
  if (inner_first_) return {inner_blocks, outer_blocks};
  return {outer_blocks, inner_blocks};
}

ScaleData::Place ScaleData::place_of(int64_t group, int64_t outer, int64_t inner) const {
  const int64_t block = inner_block_ == 0 ? 0 : inner / inner_block_;
  const int64_t matrix = kind_ == Kind::kWeights && tensor_->shapes().size() > 1 ? group : 0;
  if (mode_ == ScaleMode::kTensor) return {matrix, 0, 0};
  if (kind_ == Kind::kColumns) {
    if (mode_ == ScaleMode::kRow) return {0, c_.group_offset + group, outer};
    return {0, first_line_[static_cast<size_t>(group)] + block, outer};
  }
  if (mode_ == ScaleMode::kRow) return {matrix, outer, 0};
  if (inner_first_) return {matrix, block, outer / outer_block_};
  return {matrix, outer / outer_block_, block};
}

double ScaleData::value(int64_t group, int64_t outer, int64_t inner) const {
  const Place place = place_of(group, outer, inner);
  return tensor_->before(place.matrix, place.row, place.col);
}

/// Powers of two for E8M0; some f32 scales are 0, whose blocks count as zeros.
void ScaleData::fill(Random& random) {
  const auto draw = [&] {
    if (c_.nan_scales && random.chance(1.0 / 64)) return std::numeric_limits<double>::quiet_NaN();
    if (tensor_->dtype() == DType::kE8M0)
      return std::ldexp(1.0, static_cast<int>(random.between(-3, 3)) + c_.scale_exponent);
    return random.chance(0.05) ? 0.0 : std::ldexp(random.uniform(0.25, 2), c_.scale_exponent);
  };
  const auto fill_rows = [&](int64_t matrix, int64_t begin, int64_t end) {
    const int64_t cols = tensor_->shapes()[static_cast<size_t>(matrix)].cols;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t col = 0; col < cols; ++col) tensor_->set(matrix, row, col, draw());
    }
  };
  if (tensor_->shapes().size() == 1 && mode_ == ScaleMode::kTensor) return fill_rows(0, 0, 1);
  if (kind_ == Kind::kRows) {
    const bool all = c_.lhs_rows >= 0;
    return fill_rows(0, all ? 0 : c_.local_begin(), all ? c_.lhs_rows : c_.local_end());
  }
  for (int64_t i = 0; i < c_.local_groups(); ++i) {
    if (kind_ == Kind::kWeights) {
      if (c_.op == Op::kGroupedGemm || c_.group_rows(i) > 0) {
        const auto matrix = tensor_->shapes().size() > 1 ? i : 0;
        fill_rows(matrix, 0, tensor_->shapes()[static_cast<size_t>(matrix)].rows);
      }
    } else if (mode_ == ScaleMode::kRow) {
      fill_rows(0, c_.group_offset + i, c_.group_offset + i + 1);
    } else {
      const int64_t first = first_line_[static_cast<size_t>(i)];
      fill_rows(0, first, first + blocks_of(c_.group_rows(i), inner_block_));
    }
  }
}

Scales ScaleData::scales() const {
  if (kind_ != Kind::kWeights) {
    TensorView view = tensor_->matrix_view();
    const bool one_dim =
        mode_ == ScaleMode::kTensor || (mode_ == ScaleMode::kRow && kind_ == Kind::kRows);
    if (one_dim) view.rank = 1;
    return {mode_, view};
  }
  const GroupedTensor t = tensor_->tensor();
  const bool list = t.placement == Placement::kList;
  std::vector<int64_t> shape, strides;
  const auto add = [&](int64_t size, int64_t stride) {
    shape.push_back(size);
    strides.push_back(stride);
  };
  if (!list || mode_ == ScaleMode::kTensor) add(list ? 1 : t.num_groups, t.group_stride);
  if (mode_ != ScaleMode::kTensor)
    add(t.rows.uniform, t.contiguous ? t.cols.uniform : t.row_stride);
  if (inner_block_ != 0) add(t.cols.uniform, t.col_stride);
  TensorView view;
  view.data = t.data;
  view.dtype = t.dtype;
  view.device = t.device;
  view.rank = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  if (list) return Scales::list(mode_, t.pointers, view, t.pointers_device);
  return {mode_, view};
}

}  // namespace cadre::verify
