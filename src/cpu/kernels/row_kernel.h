// What the row ops do to single rows, compiled once for each instruction set.
#pragma once

#include <cstdint>

#include "cadre/activation.h"
#include "cpu/gemm_item.h"

namespace cadre::cpu {

/// sums[c] = sum over i of weights[i] * rows[i][c] + ..., i ascending, each product and each sum
/// rounded; then every addend; rounded once into `out`. MatrixRefs are single rows: row_stride is
/// not used.
struct WeightedRows {
  const MatrixRef* rows;  ///< all of one type and column stride
  const double* weights;
  int64_t count;
  const MatrixRef* addends;
  int64_t num_addends;
  MatrixRef out;
  int64_t width;
};

/// An Activation and the width of its result, without functions that a kernel file could leave
/// behind.
struct RowActivation {
  ActivationKind kind;
  bool gated;
  bool interleaved;
  double alpha, limit, up_offset;
  int64_t width;
};

struct ActivateRow {
  RowActivation activation;
  MatrixRef preact;
  MatrixRef out;
};

struct ActivateGradRow {
  RowActivation activation;
  MatrixRef preact;
  MatrixRef grad;
  double scale;
  MatrixRef d_preact;   ///< data null: not asked for
  MatrixRef activated;  ///< the same
};

struct RowKernel {
  /// In f32, or in f64 if `wide`.
  void (*weighted_sum)(const WeightedRows& args, bool wide);
  /// The sum of a[c] * b[c], in an order that depends on `width` alone.
  double (*dot)(const MatrixRef& a, const MatrixRef& b, int64_t width, bool wide);
  void (*activate)(const ActivateRow& args, bool wide);
  /// Returns the row's dot product.
  double (*activate_grad)(const ActivateGradRow& args, bool wide);
};

extern const RowKernel kRowsScalar;
#if defined(CADRE_HAVE_AVX2)
extern const RowKernel kRowsAvx2;
#endif
#if defined(CADRE_HAVE_AVX512)
extern const RowKernel kRowsAvx512;
#endif

}  // namespace cadre::cpu
