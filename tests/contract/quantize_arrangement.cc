// Codes and scales of a quantised operand between guards.
#include "tests/contract/quantize_arrangement.h"

#include <numeric>

namespace cadre::contract {

using verify::MatrixShape;
using verify::PlacedTensor;
using verify::Random;

namespace {

int64_t block_of(ScaleMode mode) {
  return mode == ScaleMode::kBlock128 ? 128 : mode == ScaleMode::kMx ? 32 : 0;
}
int64_t blocks(int64_t size, int64_t block) { return (size + block - 1) / block; }

/// Blocks of so many rows before a group.
int64_t lines_before(const QuantizeCase& c, int64_t group, int64_t block) {
  int64_t lines = 0;
  for (int64_t i = 0; i < group; ++i) lines += blocks(size_of_group(c, i), block);
  return lines;
}

/// A stack of matrices as one view of rank 3.
TensorView stack_view(const PlacedTensor& tensor, int64_t count) {
  if (count == 1) {
    TensorView view = tensor.matrix_view();
    return TensorView::strided(view.data, view.dtype, {1, view.shape[0], view.shape[1]},
                               {0, view.strides[0], view.strides[1]}, view.device);
  }
  const GroupedTensor stack = tensor.tensor();
  return TensorView::strided(
      stack.data, stack.dtype, {count, stack.rows.uniform, stack.cols.uniform},
      {stack.group_stride, stack.row_stride, stack.col_stride}, stack.device);
}

}  // namespace

int64_t rows_of(const QuantizeCase& c) {
  return std::accumulate(c.sizes.begin(), c.sizes.end(), c.tail);
}
int64_t groups_of(const QuantizeCase& c) { return static_cast<int64_t>(c.sizes.size()); }
int64_t size_of_group(const QuantizeCase& c, int64_t group) {
  return c.sizes[static_cast<size_t>(group)];
}
int64_t begin_of(const QuantizeCase& c, int64_t group) {
  return std::accumulate(c.sizes.begin(), c.sizes.begin() + group, int64_t{0});
}
std::unique_ptr<PlacedTensor> place(const Subject& subject, DType dtype,
                                    std::vector<MatrixShape> shapes, MatrixShape shape_of_none,
                                    Layout layout, Random& random) {
  layout.form = shapes.size() == 1 ? Placement::kRows : Placement::kStacked;
  return std::make_unique<PlacedTensor>(subject.memory, subject.memory, dtype, std::move(shapes),
                                        shape_of_none, layout, random);
}

std::vector<MatrixShape> matrices(const QuantizeCase& c, int64_t rows, int64_t cols) {
  return std::vector<MatrixShape>(c.weights ? c.sizes.size() : 1, MatrixShape{rows, cols});
}

TensorView data_view(const QuantizeCase& c, const PlacedTensor& tensor) {
  return c.weights ? stack_view(tensor, groups_of(c)) : tensor.matrix_view();
}

std::unique_ptr<PlacedTensor> Arrangement::scale_tensor(const Subject& subject,
                                                        const QuantizeCase& c, bool transposed,
                                                        DType dtype, Random& random) {
  const int64_t block = block_of(c.mode);
  const int64_t n = c.sizes.empty() ? 0 : c.sizes[0];
  std::vector<MatrixShape> shapes{{1, 1}};
  if (c.weights) {
    const int64_t outer = transposed ? c.k : n;
    const int64_t inner = transposed ? n : c.k;
    if (c.mode == ScaleMode::kTensor && !c.one_scale) shapes = {{1, groups_of(c)}};
    if (c.mode == ScaleMode::kRow) shapes = {{groups_of(c), outer}};
    if (block != 0) {
      const bool square = c.mode == ScaleMode::kBlock128;
      shapes = matrices(c, square ? blocks(outer, block) : outer, blocks(inner, block));
    }
  } else if (transposed) {
    if (c.mode == ScaleMode::kRow) shapes = {{groups_of(c), c.k}};
    if (block != 0) shapes = {{column_scale_capacity(rows_of(c), groups_of(c), block), c.k}};
  } else {
    if (c.mode == ScaleMode::kRow) shapes = {{1, rows_of(c)}};
    if (block != 0) shapes = {{rows_of(c), blocks(c.k, block)}};
  }
  return place(subject, dtype, shapes, shapes[0], c.layout, random);
}

TensorView Arrangement::scale_view(const PlacedTensor& scales) const {
  if (c_.mode == ScaleMode::kTensor) return scales.vector_view();
  if (c_.mode == ScaleMode::kRow) {
    return c_.weights || transposed_ ? scales.matrix_view() : scales.vector_view();
  }
  return data_view(c_, scales);
}

Arrangement::Arrangement(const Subject& subject, const QuantizeCase& c, bool transposed,
                         Random& random)
    : c_(c), transposed_(transposed) {
  for (int64_t group = 0; group <= groups_of(c); ++group) {
    before_.push_back(
        {begin_of(c, group), lines_before(c, group, 32), lines_before(c, group, 128)});
  }
  const int64_t n = c.sizes.empty() ? 0 : c.sizes[0];
  std::vector<MatrixShape> shapes;
  if (c.weights) {
    shapes = transposed ? matrices(c, c.k, n) : matrices(c, n, c.k);
  } else if (transposed) {
    shapes = {{c.k, column_capacity(rows_of(c), groups_of(c))}};
  } else {
    shapes = {{rows_of(c), c.k}};
  }
  codes_ =
      place(subject, transposed ? c.column_type : c.row_type, shapes, shapes[0], c.layout, random);
  const bool e8m0 = c.mode == ScaleMode::kMx || c.e8m0;
  scales_ = scale_tensor(subject, c, transposed, e8m0 ? DType::kE8M0 : DType::kF32, random);
  const auto allow = [](PlacedTensor& tensor, const Index& at) {
    tensor.allow_change(at[0], at[1], at[2]);
  };
  for (int64_t group = 0; group < groups_of(c); ++group) {
    for (int64_t row = 0; row < size_of_group(c, group); ++row) {
      for (int64_t col = 0; col < c.k; ++col) allow(*codes_, code_of(group, row, col));
    }
  }
  for (const Index& at : zeros()) allow(*codes_, at);
  for (const Index& at : all_scales()) allow(*scales_, at);
}

Arrangement::Index Arrangement::code_of(int64_t group, int64_t row, int64_t col) const {
  if (c_.weights) return transposed_ ? Index{group, col, row} : Index{group, row, col};
  const Before& before = before_[static_cast<size_t>(group)];
  if (!transposed_) return {0, before.rows + row, col};
  return {0, col, before.strips * 32 + row};
}

Arrangement::Index Arrangement::scale_of(int64_t group, int64_t row, int64_t col) const {
  const int64_t block = block_of(c_.mode);
  const bool square = c_.weights && c_.mode == ScaleMode::kBlock128;
  if (c_.mode == ScaleMode::kTensor) {
    return c_.weights && !c_.one_scale ? Index{0, 0, group} : Index{0, 0, 0};
  }
  const int64_t outer = transposed_ ? col : row;
  const int64_t inner = transposed_ ? row : col;
  const Before& before = before_[static_cast<size_t>(group)];
  if (c_.mode == ScaleMode::kRow) {
    if (c_.weights || transposed_) return {0, group, outer};
    return {0, 0, before.rows + row};
  }
  if (c_.weights) return {group, square ? outer / block : outer, inner / block};
  if (transposed_) return {0, (block == 32 ? before.strips : before.bands) + row / block, col};
  return {0, before.rows + row, col / block};
}

std::vector<Arrangement::Index> Arrangement::all_scales() const {
  std::vector<Index> all;
  const std::vector<MatrixShape>& shapes = scales_->shapes();
  const int64_t block = block_of(c_.mode);
  // A column-wise copy has room for more lines than it uses.
  const int64_t lines = !c_.weights && transposed_ && block != 0
                            ? lines_before(c_, groups_of(c_), block)
                            : shapes[0].rows;
  for (size_t matrix = 0; matrix < shapes.size(); ++matrix) {
    for (int64_t row = 0; row < lines; ++row) {
      for (int64_t col = 0; col < shapes[0].cols; ++col) {
        all.push_back({static_cast<int64_t>(matrix), row, col});
      }
    }
  }
  return all;
}

bool Arrangement::is_tail(const Index& scale) const {
  if (c_.weights || transposed_ || c_.mode == ScaleMode::kTensor) return false;
  return scale[c_.mode == ScaleMode::kRow ? 2 : 1] >= rows_of(c_) - c_.tail;
}

std::vector<Arrangement::Index> Arrangement::zeros() const {
  std::vector<Index> all;
  if (c_.weights) return all;
  for (int64_t col = 0; col < c_.k; ++col) {
    for (int64_t row = 0; !transposed_ && row < c_.tail; ++row) {
      all.push_back({0, rows_of(c_) - c_.tail + row, col});
    }
    for (int64_t group = 0; transposed_ && group < groups_of(c_); ++group) {
      const int64_t size = size_of_group(c_, group);
      for (int64_t row = size; row % 32 != 0; ++row) all.push_back(code_of(group, row, col));
    }
  }
  return all;
}

ScaledTensor Arrangement::operand() const {
  ScaledTensor tensor(data_view(c_, *codes_), Scales(c_.mode, scale_view(*scales_)));
  tensor.columns = transposed_ && !c_.weights;
  return tensor;
}

}  // namespace cadre::contract
