// The exact result of an element. Reads operands through the test's own layout, never through the
// views that the library sees, and shares no code with any backend.
#include "verify/oracle.h"

#include <cmath>

namespace cadre::verify {
namespace {

/// Roundings outside the sum: alpha, bias_scale * bias, their sum, row_scale, beta * C, the sum
/// with it, and the narrowing of scalars and scales to the type of the computation (1 or 2).
constexpr int64_t kEpilogueOperations = 8;

/// With scales: each of both, and two more where the sum is one of sums of blocks: those of a block
/// go through as many roundings as it has terms, then through one for each block that follows.
constexpr int64_t kScaleOperations = 4;

/// Hopper's tensor cores cut each of the 32 products of an instruction, and the sum so far, to 13
/// bits behind the largest of them: 33 errors, each at most that part of a term.
constexpr double kTensorCoreFp8 = 33 * 0x1p-13;

struct Sum {
  double value = 0;
  double magnitude = 0;  ///< of the terms' absolute values

  void add(double term) {
    value += term;
    magnitude += std::fabs(term);
  }
};

/// Where the terms of one element lie: lhs and rhs element i of `count`.
struct Terms {
  int64_t count;
  int64_t lhs_matrix, lhs_row, lhs_col, lhs_row_step, lhs_col_step;
  int64_t rhs_matrix, rhs_row, rhs_col, rhs_row_step, rhs_col_step;
};

Terms terms_of(const Case& c, int64_t group, int64_t row, int64_t col) {
  if (c.op == Op::kTgmm) {  // sum over the group's rows of lhs[r, row] * rhs[r, col]
    const int64_t begin = c.group_begin(group);
    return {c.group_rows(group), 0, begin, row, 1, 0, 0, begin, col, 1, 0};
  }
  const bool gmm = c.op == Op::kGmm;
  const int64_t count = gmm ? c.k : c.dims[static_cast<size_t>(group)].k;
  Terms terms{};
  terms.count = count;
  terms.lhs_matrix = gmm ? 0 : group;
  terms.rhs_matrix = group;
  if (c.transpose_lhs) {
    terms.lhs_col = row;
    terms.lhs_row_step = 1;
  } else {
    terms.lhs_row = gmm ? c.group_begin(group) + row : row;
    terms.lhs_col_step = 1;
  }
  if (c.transpose_rhs) {
    terms.rhs_row = col;
    terms.rhs_col_step = 1;
  } else {
    terms.rhs_col = col;
    terms.rhs_row_step = 1;
  }
  return terms;
}

DType compute_of(const Case& c) {
  if (c.op == Op::kBiasGrad) {
    const bool f64 = c.lhs == DType::kF64 || (c.dbias && c.out == DType::kF64) ||
                     ((c.dbias_scale || c.bias_scale) && c.scale_dtype == DType::kF64) ||
                     (c.bias != Presence::kAbsent && c.bias_dtype == DType::kF64);
    return f64 ? DType::kF64 : DType::kF32;
  }
  const bool f64 = c.lhs == DType::kF64 || c.rhs == DType::kF64 || c.out == DType::kF64;
  const bool both_int8 = c.lhs == DType::kI8 && c.rhs == DType::kI8;
  return f64 && !both_int8 ? DType::kF64 : DType::kF32;
}

/// int8 x int8: the sum modulo 2^32, read as a signed number.
double wrapped(double exact) {
  return static_cast<double>(
      static_cast<int32_t>(static_cast<uint32_t>(static_cast<int64_t>(exact))));
}

}  // namespace

Expected expected_product(const Case& c, const CaseData& data, int64_t group, int64_t row,
                          int64_t col) {
  const Terms t = terms_of(c, group, row, col);
  const int64_t scaled_row = c.op == Op::kGmm ? c.group_begin(group) + row : row;
  Sum acc;
  for (int64_t i = 0; i < t.count; ++i) {
    const double scale = data.lhs_scale(group, scaled_row, i) * data.rhs_scale(group, col, i);
    acc.add(data.lhs_value(t.lhs_matrix, t.lhs_row + i * t.lhs_row_step,
                           t.lhs_col + i * t.lhs_col_step) *
            data.rhs_value(t.rhs_matrix, t.rhs_row + i * t.rhs_row_step,
                           t.rhs_col + i * t.rhs_col_step) *
            scale);
  }
  const bool both_int8 = c.lhs == DType::kI8 && c.rhs == DType::kI8;
  if (both_int8) {
    acc.value = wrapped(acc.value);
    acc.magnitude = std::fabs(acc.value);
  }
  const bool rows_of_one = c.op == Op::kGmm && c.out_layout.form == Placement::kRows;
  const int64_t c_matrix = rows_of_one ? 0 : group;
  const int64_t c_row = rows_of_one ? c.group_begin(group) + row : row;
  const double beta = data.beta_of(group);
  if (c.out == DType::kI32) {
    const double old = beta == 0 ? 0.0 : data.c_tensor().before(c_matrix, c_row, col);
    return {wrapped(acc.value + old), 0};
  }
  const double alpha = data.alpha_of(group);
  Sum result;
  result.value = alpha * acc.value;
  result.magnitude = std::fabs(alpha) * acc.magnitude;
  // tf32 keeps 10 bits of each factor's fraction.
  double narrowing = c.precision == Precision::kTf32 ? 0x1p-10 * result.magnitude : 0.0;
  if (c.tensor_core_fp8) narrowing = kTensorCoreFp8 * result.magnitude;
  double scale = 1;
  if (data.bias) {
    const int64_t at = c.group_begin(group) + row;
    const double bias_scale = data.bias_scale ? data.bias_scale->before(0, 0, at) : 1.0;
    result.add(bias_scale * data.bias->before(group, 0, col));
  }
  if (data.row_scale) scale = data.row_scale->before(0, 0, c.group_begin(group) + row);
  result.value *= scale;
  result.magnitude *= std::fabs(scale);
  if (beta != 0) result.add(beta * data.c_tensor().before(c_matrix, c_row, col));
  const int64_t of_scales = c.lhs_mode == ScaleMode::kNone ? 0 : kScaleOperations;
  const int64_t operations = kEpilogueOperations + of_scales + (both_int8 ? 0 : t.count);
  return {result.value, rounding_bound(compute_of(c), operations, result.magnitude) +
                            narrowing * std::fabs(scale)};
}

namespace {

/// What an activation makes of its gate, or of all of its input; no slope is above 1.2, but for
/// relu2, whose slope is 2 |x|.
double gate_value(ActivationKind kind, double x, double alpha) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  switch (kind) {
    case ActivationKind::kSilu:
    case ActivationKind::kSwiglu:
      return x * sigmoid(x);
    case ActivationKind::kGeluTanh:
    case ActivationKind::kGegluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case ActivationKind::kGeluErf:
    case ActivationKind::kGegluErf:
      return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
    case ActivationKind::kRelu2:
      return x > 0 ? x * x : 0;
    case ActivationKind::kClampedSwiglu:
      return x * sigmoid(alpha * x);
    default:
      return x;
  }
}

}  // namespace

Expected expected_activated(const Case& c, const CaseData& data, int64_t group, int64_t row,
                            int64_t col) {
  const Activation& a = c.activation;
  const bool gated = a.gated();
  const bool interleaved = a.layout == GateLayout::kInterleaved;
  // The input is rounded to the result's type first.
  const auto input = [&](int64_t at) {
    Expected x = expected_product(c, data, group, row, at);
    x.bound = tolerance_of(c.out, x);
    return x;
  };
  Expected gate = input(!gated ? col : interleaved ? 2 * col : col);
  Expected up{1, 0};
  if (gated) up = input(interleaved ? 2 * col + 1 : c.out_cols() + col);
  if (a.kind == ActivationKind::kClampedSwiglu) {
    if (gate.value > a.limit) gate.value = a.limit;
    if (std::fabs(up.value) > a.limit) up.value = std::copysign(a.limit, up.value);
    up.value += a.up_offset;
  }
  const double value = gate_value(a.kind, gate.value, a.alpha);
  const double slope =
      a.kind == ActivationKind::kRelu2 ? 2 * (std::fabs(gate.value) + gate.bound) : 1.2;
  const double gate_bound = slope * gate.bound + 16 * rounding_bound(compute_of(c), 1, value);
  return {value * up.value, gate_bound * (std::fabs(up.value) + up.bound) +
                                std::fabs(value) * up.bound +
                                rounding_bound(compute_of(c), 4, std::fabs(value * up.value))};
}

Expected expected_dbias(const Case& c, const CaseData& data, int64_t group, int64_t col) {
  Sum sum;
  const int64_t begin = c.group_begin(group);
  const int64_t rows = c.group_rows(group);
  for (int64_t row = begin; row < begin + rows; ++row) {
    const double scale = data.bias_scale ? data.bias_scale->before(0, 0, row) : 1.0;
    sum.add(scale * data.lhs->before(0, row, col));
  }
  if (c.accumulate) sum.add(data.out->before(group, 0, col));
  return {sum.value, rounding_bound(compute_of(c), rows + kEpilogueOperations, sum.magnitude)};
}

Expected expected_dbias_scale(const Case& c, const CaseData& data, int64_t group, int64_t row) {
  Sum sum;
  for (int64_t col = 0; col < c.n; ++col) {
    sum.add(data.lhs->before(0, c.group_begin(group) + row, col) *
            data.bias->before(group, 0, col));
  }
  return {sum.value, rounding_bound(compute_of(c), c.n + kEpilogueOperations, sum.magnitude)};
}

}  // namespace cadre::verify
