// Lowers a checked call to dense products.
#include <algorithm>

#include "core/convert.h"
#include "cpu/gemm_item.h"
#include "plan/grouped_dims.h"

namespace cadre::cpu {
namespace {

using plan::Operands;
using plan::Problem;

double scalar_of(const GroupScalars& scalars, int64_t group) {
  if (!scalars.varies()) return scalars.uniform;
  const TensorView& view = scalars.per_group;
  return load_as_double(view.data, view.dtype, group * view.strides[0]);
}

void* advance(void* data, DType dtype, int64_t elements) {
  if (data == nullptr) return nullptr;  // an operand without elements
  return static_cast<char*>(data) + elements * static_cast<int64_t>(size_of(dtype));
}

/// Rows [begin, ...) of a kRows tensor.
MatrixRef rows_from(const GroupedTensor& tensor, int64_t begin) {
  return {advance(tensor.data, tensor.dtype, begin * tensor.row_stride), tensor.dtype,
          tensor.row_stride, tensor.col_stride};
}

/// Matrix of one group: of a stacked tensor, a list, or (for gmm's out) rows of one tensor.
MatrixRef matrix_of(const GroupedTensor& tensor, int64_t group, int64_t row_begin) {
  if (tensor.placement == Placement::kRows) return rows_from(tensor, row_begin);
  if (tensor.placement == Placement::kStacked) {
    return {advance(tensor.data, tensor.dtype, group * tensor.group_stride), tensor.dtype,
            tensor.row_stride, tensor.col_stride};
  }
  const plan::MatrixDims dims = plan::dims_of(tensor, group);
  return {tensor.pointers[group], tensor.dtype, plan::row_stride_of(tensor, dims),
          tensor.col_stride};
}

/// Rows [begin, ...) of an operand, the whole of it where they are taken by index.
MatrixRef rows_of(const GroupedTensor& tensor, const TensorView& index, int64_t begin) {
  return rows_from(tensor, index.given() ? 0 : begin);
}

RowIndex index_from(const TensorView& index, int64_t begin) {
  if (!index.given()) return {};
  return {advance(index.data, index.dtype, begin * index.strides[0]), index.dtype,
          index.strides[0]};
}

VectorRef vector_from(const TensorView& view, int64_t begin) {
  if (!view.given()) return {};
  return {advance(view.data, view.dtype, begin * view.strides[0]), view.dtype, view.strides[0]};
}

MatrixRef transposed(MatrixRef matrix) {
  std::swap(matrix.row_stride, matrix.col_stride);
  return matrix;
}

const void* advance_scales(const void* data, DType dtype, int64_t elements) {
  return static_cast<const char*>(data) + elements * static_cast<int64_t>(size_of(dtype));
}

/// The scales of one group's matrix, `from` scales behind the first of all.
ScaleRef scales_from(const plan::ScaleForm& form, const void* data, int64_t from) {
  if (!form.given() || data == nullptr) return {};
  return {.data = advance_scales(data, form.dtype, from),
          .mode = form.mode,
          .dtype = form.dtype,
          .outer_stride = form.outer_stride,
          .inner_stride = form.inner_stride,
          .outer_block = form.outer_block};
}

ScaleRef scales_of_group(const plan::ScaleForm& form, const Scales& scales, int64_t group) {
  if (form.list) return scales_from(form, scales.pointers[group], 0);
  return scales_from(form, scales.values.data, group * form.group_stride);
}

void lower_gmm(const Problem& p, const Operands& operands, LoweredCall* call) {
  const std::vector<int64_t>& offsets = operands.host_offsets;
  const int64_t first = operands.group_offset.value;
  for (int64_t i = 0; i < p.num_local_groups; ++i) {
    const int64_t begin = offsets[static_cast<size_t>(first + i)];
    const int64_t end = offsets[static_cast<size_t>(first + i + 1)];
    if (begin == end) continue;
    GemmItem item{.m = end - begin, .n = p.n, .k = p.k, .group = i};
    item.a = rows_of(operands.lhs, operands.lhs_index, begin);
    item.a_rows = index_from(operands.lhs_index, begin);
    item.b = matrix_of(operands.rhs, i, 0);
    if (p.transpose_rhs) item.b = transposed(item.b);
    const int64_t scaled_row = operands.lhs_index.given() ? 0 : begin;
    item.a_scales = scales_from(p.lhs_scales, operands.lhs_scales.values.data,
                                scaled_row * p.lhs_scales.outer_stride);
    item.b_scales = scales_of_group(p.rhs_scales, operands.rhs_scales, i);
    item.c = matrix_of(operands.epilogue.c, i, begin);
    item.d = matrix_of(operands.out, i, begin);
    if (operands.epilogue.bias.given()) {
      const MatrixRef bias = matrix_of(operands.epilogue.bias, i, 0);
      item.bias = {bias.data, bias.dtype, bias.col_stride};
    }
    item.bias_scale = vector_from(operands.epilogue.bias_scale, begin);
    item.row_scale = vector_from(operands.epilogue.row_scale, begin);
    item.alpha = scalar_of(operands.epilogue.alpha, i);
    item.beta = scalar_of(operands.epilogue.beta, i);
    item.step.activation = operands.epilogue.activation;
    if (operands.epilogue.preactivation.given()) {
      item.step.pre = rows_from(operands.epilogue.preactivation, begin);
    }
    call->items.push_back(item);
  }
  // Rows before, behind and between: with beta they keep what they hold, a list has none.
  if (p.tail != Tail::kZero || p.epilogue.has_beta || operands.out.placement != Placement::kRows)
    return;
  const int64_t local_begin = offsets[static_cast<size_t>(first)];
  const int64_t local_end = offsets[static_cast<size_t>(first + p.num_local_groups)];
  for (const auto& [begin, end] : {std::pair{int64_t{0}, local_begin}, std::pair{local_end, p.m}}) {
    if (begin == end) continue;
    GemmItem rows{.m = end - begin, .n = p.n / p.epilogue.activation.columns()};
    rows.d = rows_from(operands.out, begin);
    call->zero_rows.push_back(rows);
    if (!operands.epilogue.preactivation.given()) continue;
    rows.n = p.n;
    rows.d = rows_from(operands.epilogue.preactivation, begin);
    call->zero_rows.push_back(rows);
  }
}

/// Where the groups of a column-wise copy begin, walked in order.
class ColumnWalk {
 public:
  explicit ColumnWalk(const plan::ScaleForm& form)
      : form_(form), block_(plan::inner_block_of(form.mode)) {}

  /// The matrix [outer, rows of the group].
  MatrixRef matrix(const GroupedTensor& copy) const {
    return {advance(copy.data, copy.dtype, column_ * copy.col_stride), copy.dtype, copy.row_stride,
            copy.col_stride};
  }
  ScaleRef scales(const Scales& scales) const {
    return scales_from(form_, scales.values.data,
                       line_ * form_.inner_stride + group_ * form_.group_stride);
  }
  void pass(int64_t rows) {
    column_ += (rows + kColumnAlignment - 1) / kColumnAlignment * kColumnAlignment;
    if (block_ != 0) line_ += (rows + block_ - 1) / block_;
    ++group_;
  }

 private:
  const plan::ScaleForm& form_;
  int64_t block_;
  int64_t column_ = 0, line_ = 0, group_ = 0;
};

void lower_tgmm(const Problem& p, const Operands& operands, LoweredCall* call) {
  const std::vector<int64_t>& offsets = operands.host_offsets;
  const int64_t first = operands.group_offset.value;
  ColumnWalk a_columns(p.lhs_scales);
  ColumnWalk b_columns(p.rhs_scales);
  for (int64_t i = -first; i < p.num_local_groups; ++i) {
    const int64_t begin = offsets[static_cast<size_t>(first + i)];
    const int64_t end = offsets[static_cast<size_t>(first + i + 1)];
    const ColumnWalk a_here = a_columns;
    const ColumnWalk b_here = b_columns;
    a_columns.pass(end - begin);
    b_columns.pass(end - begin);
    if (i < 0) continue;
    GemmItem item{.m = p.k, .n = p.n, .k = end - begin, .group = i};
    item.a = transposed(rows_of(operands.lhs, operands.lhs_index, begin));
    item.a_cols = index_from(operands.lhs_index, begin);
    item.b = rows_of(operands.rhs, operands.rhs_index, begin);
    item.b_rows = index_from(operands.rhs_index, begin);
    if (p.lhs_scales.columns) item.a = a_here.matrix(operands.lhs);
    if (p.rhs_scales.columns) item.b = transposed(b_here.matrix(operands.rhs));
    item.a_scales = a_here.scales(operands.lhs_scales);
    item.b_scales = b_here.scales(operands.rhs_scales);
    item.c = matrix_of(operands.epilogue.c, i, 0);
    item.d = matrix_of(operands.out, i, 0);
    item.alpha = scalar_of(operands.epilogue.alpha, i);
    item.beta = scalar_of(operands.epilogue.beta, i);
    call->items.push_back(item);
  }
}

/// Walks the matrices of a grouped_gemm tensor in order; a packed one needs the running position.
class MatrixSequence {
 public:
  explicit MatrixSequence(const GroupedTensor& tensor) : tensor_(tensor) {}

  MatrixRef next(int64_t group) {
    if (tensor_.placement != Placement::kPacked) return matrix_of(tensor_, group, 0);
    const plan::MatrixDims dims = plan::dims_of(tensor_, group);
    const int64_t begin = plan::packed_begin(tensor_, group, end_);
    end_ = begin + plan::packed_elements(tensor_, dims);
    return {advance(tensor_.data, tensor_.dtype, begin), tensor_.dtype,
            plan::row_stride_of(tensor_, dims), tensor_.col_stride};
  }

 private:
  const GroupedTensor& tensor_;
  int64_t end_ = 0;
};

void lower_grouped_gemm(const Problem& p, const Operands& operands, LoweredCall* call) {
  MatrixSequence a(operands.lhs);
  MatrixSequence b(operands.rhs);
  MatrixSequence c(operands.epilogue.c);
  MatrixSequence d(operands.out);
  for (int64_t i = 0; i < p.num_local_groups; ++i) {
    const plan::MatrixDims out = plan::dims_of(operands.out, i);
    const plan::MatrixDims lhs = plan::dims_of(operands.lhs, i);
    GemmItem item{
        .m = out.rows, .n = out.cols, .k = p.transpose_lhs ? lhs.rows : lhs.cols, .group = i};
    item.a = a.next(i);
    item.b = b.next(i);
    item.c = c.next(i);
    item.d = d.next(i);
    if (p.transpose_lhs) item.a = transposed(item.a);
    if (p.transpose_rhs) item.b = transposed(item.b);
    item.a_scales = scales_of_group(p.lhs_scales, operands.lhs_scales, i);
    item.b_scales = scales_of_group(p.rhs_scales, operands.rhs_scales, i);
    item.alpha = scalar_of(operands.epilogue.alpha, i);
    item.beta = scalar_of(operands.epilogue.beta, i);
    call->items.push_back(item);
  }
}

/// An operand without elements may have no memory: strides of 0 keep every offset from null at 0.
void drop_strides_of_nothing(GemmItem* item) {
  for (MatrixRef* matrix : {&item->a, &item->b, &item->c, &item->d}) {
    if (matrix->data == nullptr) matrix->row_stride = matrix->col_stride = 0;
  }
}

}  // namespace

void lower(const Problem& problem, const Operands& operands, LoweredCall* call) {
  switch (problem.op) {
    case plan::Op::kGmm:
      lower_gmm(problem, operands, call);
      break;
    case plan::Op::kTgmm:
      lower_tgmm(problem, operands, call);
      break;
    case plan::Op::kGroupedGemm:
      lower_grouped_gemm(problem, operands, call);
      break;
    case plan::Op::kRoute:
    case plan::Op::kPermute:
    case plan::Op::kCombine:
    case plan::Op::kCombineGrad:
    case plan::Op::kSelectExperts:
    case plan::Op::kSelectExpertsGrad:
    case plan::Op::kActivate:
    case plan::Op::kActivateGrad:
    case plan::Op::kQuantize:
    case plan::Op::kDequantize:
    case plan::Op::kAmax:
    case plan::Op::kBiasGrad:
      break;
  }
  for (GemmItem& item : call->items) drop_strides_of_nothing(&item);
}

}  // namespace cadre::cpu
