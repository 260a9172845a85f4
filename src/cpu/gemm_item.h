// A grouped call on the CPU is a list of dense products and a list of row ranges to zero.
#pragma once

#include <cstdint>
#include <vector>

#include "cadre/activation.h"
#include "plan/operands.h"
#include "plan/problem.h"

namespace cadre::cpu {

/// A matrix in host memory; strides in elements, any values.
struct MatrixRef {
  void* data = nullptr;
  DType dtype = DType::kInvalid;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
};

/// A vector in host memory; data is null when it isn't given.
struct VectorRef {
  const void* data = nullptr;
  DType dtype = DType::kInvalid;
  int64_t stride = 0;
};

/// Rows of an operand by index, in host memory: each in range, or -1 for a row of zeros. Data is
/// null where row i is row i.
struct RowIndex {
  const void* data = nullptr;
  DType dtype = DType::kInvalid;
  int64_t stride = 0;

  bool given() const { return data != nullptr; }
};

/// Scales of A or B in host memory, by row of A or column of B ("outer") and along k ("inner");
/// data is null where there are none. All strides are in scales.
struct ScaleRef {
  const void* data = nullptr;
  ScaleMode mode = ScaleMode::kNone;
  DType dtype = DType::kInvalid;
  int64_t outer_stride = 0;
  int64_t inner_stride = 0;
  int32_t outer_block = 1;  ///< rows of A or columns of B that share a scale

  bool given() const { return data != nullptr; }
};

/// The scale of outer indices that share number `outer_block`, and of inner block `inner`, exactly.
/// An infinite one counts as NaN: times sums that aren't all of one sign it is that.
float scale_factor(const ScaleRef& scales, int64_t outer_block, int64_t inner);

/// What is made of finished sums before they are rounded into D: nothing where the kind is kNone.
struct ActivationStep {
  Activation activation{};
  MatrixRef pre{};  ///< [m, n]: the sums themselves, written where it is given
};

/// D = row_scale * (alpha * A @ B + bias_scale * bias) + beta * C, with A [m,k] and B [k,n].
/// C is not read where beta is 0. An item may have m, n or k of 0. With an activation D is
/// [m, result_cols] and beta is 0.
struct GemmItem {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  MatrixRef a{}, b{}, c{}, d{};
  ScaleRef a_scales{}, b_scales{};  ///< a value of A is its element times its scale
  RowIndex a_rows{};                ///< [m]: row i of A is row a_rows[i] of a
  RowIndex a_cols{};                ///< [k]: the same for columns, where A is rows transposed
  RowIndex b_rows{};                ///< [k]
  VectorRef bias{};                 ///< [n]
  VectorRef bias_scale{};           ///< [m]
  VectorRef row_scale{};            ///< [m]
  double alpha = 1;
  double beta = 0;
  ActivationStep step{};
  int64_t group = 0;  ///< local group: which matrix of packed weights, for one

  bool activates() const { return step.activation.kind != ActivationKind::kNone; }
  int64_t result_cols() const { return n / step.activation.columns(); }
  /// Columns of B come in two halves, gate and up, and each result takes one of either.
  bool is_paired() const {
    return step.activation.gated() && step.activation.layout == GateLayout::kConcatenated;
  }
};

struct LoweredCall {
  std::vector<GemmItem> items;
  std::vector<GemmItem> zero_rows;  ///< only m, n and d are set
};

/// Reads offsets, scalars and pointer lists, all in host memory and already checked, into items.
void lower(const plan::Problem& problem, const plan::Operands& operands, LoweredCall* call);

/// The address of element [row, col].
inline void* element_at(const MatrixRef& matrix, int64_t row, int64_t col) {
  return static_cast<char*>(matrix.data) + (row * matrix.row_stride + col * matrix.col_stride) *
                                               static_cast<int64_t>(size_of(matrix.dtype));
}

/// The rest of a matrix from element [row, col] on.
inline MatrixRef part(const MatrixRef& matrix, int64_t row, int64_t col) {
  return {element_at(matrix, row, col), matrix.dtype, matrix.row_stride, matrix.col_stride};
}

}  // namespace cadre::cpu
