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

/// Columns that quantize works on at a time: the largest block of scales.
inline constexpr int64_t kStripeColumns = 128;

/// A stripe of scale * activation(row) in f32. Its columns behind `count` are zero, and so is all
/// of it where the row has no data.
struct StripeOfRow {
  RowActivation activation;
  MatrixRef row;
  float scale;  ///< 1: not multiplied
  int64_t col;
  int64_t count;  ///< 1 to kStripeColumns
};

/// What quantize and dequantize do to a row of kStripeColumns numbers.
struct StripeKernel {
  void (*load)(const StripeOfRow& args, float* values);
  /// Of the finite magnitudes of `count` values, a multiple of 32.
  float (*amax)(const float* values, int64_t count);
  /// amaxes[c] = max(amaxes[c], |values[c]|), finite ones alone.
  void (*raise_amaxes)(const float* values, float* amaxes);
  /// codes[c] = values[c] * inverses[c], rounded to e4m3 or e5m2.
  void (*to_codes)(const float* values, const float* inverses, DType type, uint8_t* codes);
  /// The first `count` of codes[c] * scales[c], rounded into `out`, a single row.
  void (*from_codes)(const uint8_t* codes, const float* scales, DType type, const MatrixRef& out,
                     int64_t count);
};

struct RowKernel {
  /// In f32, or in f64 if `wide`.
  void (*weighted_sum)(const WeightedRows& args, bool wide);
  /// The sum of a[c] * b[c], in an order that depends on `width` alone.
  double (*dot)(const MatrixRef& a, const MatrixRef& b, int64_t width, bool wide);
  void (*activate)(const ActivateRow& args, bool wide);
  /// Returns the row's dot product.
  double (*activate_grad)(const ActivateGradRow& args, bool wide);
  StripeKernel stripe;
};

extern const RowKernel kRowsScalar;
#if defined(CADRE_HAVE_AVX2)
extern const RowKernel kRowsAvx2;
#endif
#if defined(CADRE_HAVE_AVX512)
extern const RowKernel kRowsAvx512;
#endif

}  // namespace cadre::cpu
