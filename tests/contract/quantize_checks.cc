// The promises of quantize, dequantize and amax: codes and scales bit by bit, against the
// definition in double.
#include <cmath>
#include <limits>

#include "core/text.h"
#include "tests/contract/quantize_case.h"
#include "tests/contract/row_checks.h"

namespace cadre::contract {

const std::vector<DTypes>& quantize_types() {
  static const std::vector<DTypes> types = {{DType::kBF16, DType::kF32, DType::kBF16},
                                            {DType::kF16, DType::kBF16, DType::kF32},
                                            {DType::kF32, DType::kF16, DType::kF16}};
  return types;
}

namespace quantize {
namespace {

constexpr ScaleMode kModes[] = {ScaleMode::kTensor, ScaleMode::kRow, ScaleMode::kBlock128,
                                ScaleMode::kMx};

/// Empty, one row, one below, at and one above a block.
std::vector<int64_t> block_edges() { return {1, 0, 127, 128, 33, 129, 0}; }

}  // namespace

Failures every_mode_and_type(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ScaleMode mode : kModes) {
    for (const DType type : {DType::kE4M3, DType::kE5M2}) {
      const DType other = type == DType::kE4M3 ? DType::kE5M2 : DType::kE4M3;
      QuantizeCase c{.mode = mode, .row_type = type, .column_type = other};
      c.sizes = block_edges();
      c.tail = 5;
      c.k = 161;
      append(&failures, check_quantize(subject, types, c));
      c.column_type = DType::kInvalid;
      c.given_sizes = false;
      c.sizes = {70};
      c.tail = 0;
      append(&failures, check_quantize(subject, types, c));
      c.row_type = DType::kInvalid;
      c.column_type = type;
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

Failures weights(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ScaleMode mode : kModes) {
    for (const auto& [n, k] : {std::pair{40, 161}, {129, 128}, {1, 1}, {300, 50}}) {
      QuantizeCase c{.mode = mode, .row_type = DType::kE4M3, .column_type = DType::kE5M2};
      c.weights = true;
      c.sizes = {n, n, n};
      c.k = k;
      append(&failures, check_quantize(subject, types, c));
      c.one_scale = mode == ScaleMode::kTensor;
      c.sizes = {n};
      append(&failures, check_quantize(subject, types, c));
      c.row_type = DType::kInvalid;
      c.sizes = {n, n};
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

Failures model_widths(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ScaleMode mode : kModes) {
    for (const int64_t k : {768, 2880}) {
      QuantizeCase c{.mode = mode};
      c.sizes = {33, 0, 4};
      c.k = k;
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

Failures rows_by_index_and_weighed(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ScaleMode mode : kModes) {
    QuantizeCase c{.mode = mode};
    c.sizes = {40, 1, 130};
    c.tail = 3;
    c.k = 140;
    c.gathers = true;
    append(&failures, check_quantize(subject, types, c));
    c.scales_rows = true;
    append(&failures, check_quantize(subject, types, c));
    c.gathers = false;
    append(&failures, check_quantize(subject, types, c));
  }
  return failures;
}

Failures activations(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ScaleMode mode : kModes) {
    for (const GateLayout layout : {GateLayout::kConcatenated, GateLayout::kInterleaved}) {
      QuantizeCase c{.mode = mode};
      c.sizes = {37, 0, 129};
      c.tail = 2;
      c.k = 136;
      c.activation = {.kind = ActivationKind::kSwiglu, .layout = layout};
      c.scales_rows = layout == GateLayout::kInterleaved;
      // Powers of two jump where the rounding of an activation moves an amax; these have none.
      if (mode == ScaleMode::kMx) continue;
      append(&failures, check_quantize(subject, types, c));
      c.gathers = true;
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

Failures scales_of_every_rule(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ScaleMode mode : kModes) {
    for (const double floor : {0.0, 1e-4, 448.0}) {
      QuantizeCase c{.mode = mode};
      c.sizes = {50, 1};
      c.tail = 1;
      c.k = 130;
      c.rule = {.amax_floor = floor, .power_of_two = true};
      append(&failures, check_quantize(subject, types, c));
      c.rule.power_of_two = false;
      // Quotients that are powers of two, and zeros of both signs.
      c.value = [](int64_t row, int64_t col) {
        return row % 3 == 0 ? 0.0 : row % 3 == 1 ? -0.0 : col % 7 == 0 ? 448 * 0.125 : -3.0;
      };
      append(&failures, check_quantize(subject, types, c));
      c.rule.power_of_two = true;
      append(&failures, check_quantize(subject, types, c));
      if (mode != ScaleMode::kBlock128) continue;
      c.e8m0 = true;
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

Failures numbers_without_a_scale(const Subject& subject, const DTypes& types) {
  Failures failures;
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double tiny = types.lhs == DType::kF16 ? std::ldexp(1.0, -24) : std::ldexp(1.0, -133);
  for (const ScaleMode mode : kModes) {
    for (const DType type : {DType::kE4M3, DType::kE5M2}) {
      QuantizeCase c{.mode = mode, .row_type = type, .column_type = type};
      c.sizes = {40, 130, 35};
      c.tail = 2;
      c.k = 140;
      c.value = [=](int64_t row, int64_t col) {
        if (row >= 40 && row < 170) return 0.0;  // a group of zeros
        if (row >= 170 && row < 205) return tiny * static_cast<double>(col % 5 - 2);
        if (row >= 205) return nan;  // the tail, which nobody reads
        if (row == 3 && col == 5) return nan;
        if (row == 7 && col % 64 == 9) return col % 128 == 9 ? infinity : -infinity;
        if (row == 11) return infinity;
        if (row == 12) return -nan;
        return std::ldexp(static_cast<double>((row * 31 + col * 17) % 255 - 127),
                          static_cast<int>((row + col) % 9) - 8);
      };
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

Failures sizes_of_every_type(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const DType type : verify::kIndexTypes) {
    for (const bool ends : {false, true}) {
      QuantizeCase c{.mode = ends ? ScaleMode::kMx : ScaleMode::kBlock128};
      c.sizes = {3, 0, 40, 1};
      c.tail = 6;
      c.k = 33;
      c.sizes_type = type;
      c.ends = ends;
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

Failures any_strides(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const Layout& layout : odd_layouts(Placement::kRows)) {
    for (const ScaleMode mode : {ScaleMode::kRow, ScaleMode::kBlock128, ScaleMode::kMx}) {
      QuantizeCase c{.mode = mode};
      c.sizes = {3, 0, 40, 1};
      c.tail = 6;
      c.k = 70;
      c.layout = layout;
      append(&failures, check_quantize(subject, types, c));
      c.weights = true;
      c.sizes = {45, 45};
      c.tail = 0;
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

/// A group has the same codes and scales alone as among others.
Failures groups_are_alone(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ScaleMode mode : {ScaleMode::kRow, ScaleMode::kBlock128, ScaleMode::kMx}) {
    // The model knows nothing of other groups; a group that isn't looked at has other magnitudes.
    for (const int64_t before : {0, 1, 127, 129}) {
      QuantizeCase c{.mode = mode};
      c.sizes = {before, 130, 64};
      c.k = 65;
      c.value = [before](int64_t row, int64_t col) {
        const bool looked_at = row >= before && row < before + 130;
        return looked_at ? static_cast<double>((row - before) * 7 + col) : 1e4;
      };
      append(&failures, check_quantize(subject, types, c));
    }
  }
  return failures;
}

Failures empty_things(const Subject& subject, const DTypes& types) {
  Failures failures;
  for (const ScaleMode mode : kModes) {
    const auto check = [&](std::vector<int64_t> sizes, int64_t tail, int64_t k, bool weights) {
      QuantizeCase c{.mode = mode};
      c.sizes = std::move(sizes);
      c.tail = tail;
      c.k = k;
      c.weights = weights;
      append(&failures, check_quantize(subject, types, c));
    };
    check({0, 0, 0}, 0, 40, false);
    check({0, 0}, 9, 40, false);
    check({3, 0, 5}, 2, 0, false);
    check({0}, 0, 0, false);
    check({}, 4, 33, false);
    check({0, 0}, 0, 20, true);
    check({4, 4}, 0, 0, true);
  }
  return failures;
}

}  // namespace quantize
}  // namespace cadre::contract
