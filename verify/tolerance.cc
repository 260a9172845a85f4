// Rounding bounds, and the comparison of one element.
#include "verify/tolerance.h"

#include <cmath>
#include <limits>

#include "core/convert.h"

namespace cadre::verify {
namespace {

double rounded_to(DType dtype, double value) {
  double stored = 0;
  store_rounded(&stored, dtype, 0, value);
  return load_as_double(&stored, dtype, 0);
}

double half_unit_of(DType out) {
  switch (out) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    default:
      return 0;
  }
}

}  // namespace

double unit_of(DType compute) { return compute == DType::kF64 ? 0x1p-52 : 0x1p-23; }

double rounding_bound(DType compute, int64_t operations, double magnitude) {
  const auto count = static_cast<double>(operations);
  // The second part: hardware may flush results below the smallest normal number to zero.
  const double smallest = compute == DType::kF64 ? 0x1p-1022 : 0x1p-126;
  return count * (unit_of(compute) * magnitude + smallest);
}

bool agrees(DType out, const Expected& expected, double got) {
  if (std::isnan(expected.value)) return std::isnan(got);
  if (out == DType::kI32) return got == expected.value;
  return got >= rounded_to(out, expected.value - expected.bound) &&
         got <= rounded_to(out, expected.value + expected.bound);
}

double tolerance_of(DType out, const Expected& expected) {
  return expected.bound + half_unit_of(out) * std::fabs(expected.value);
}

double severity(DType out, const Expected& expected, double got) {
  if (agrees(out, expected, got)) return 0;
  const double error = std::fabs(got - expected.value) / tolerance_of(out, expected);
  return error > 1 ? error : std::isnan(error) ? std::numeric_limits<double>::infinity() : 1.0;
}

}  // namespace cadre::verify
