// quantize as its definition, in double: what the checks compare with, bit by bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "cadre/scaled_tensor.h"

namespace cadre::contract {

/// An FP8 type by its numbers, not by its bits.
struct Fp8Grid {
  int fraction_bits;
  int smallest_exponent;  ///< of a normal number
  double largest;
  bool has_infinity;

  static Fp8Grid of(DType dtype) {
    return dtype == DType::kE4M3 ? Fp8Grid{3, -6, 448, false} : Fp8Grid{2, -14, 57344, true};
  }

  /// The distance of two neighbours at `magnitude`.
  double quantum(double magnitude) const {
    const int exponent = magnitude == 0 ? smallest_exponent : std::ilogb(magnitude);
    return std::ldexp(1.0, std::max(exponent, smallest_exponent) - fraction_bits);
  }
  /// The nearest number, ties to even; of what is too large the largest.
  double round(double value) const {
    if (std::isnan(value)) return value;
    if (std::isinf(value)) {
      return has_infinity ? value : std::numeric_limits<double>::quiet_NaN();
    }
    const double q = quantum(std::fabs(value));
    const double rounded = std::nearbyint(std::fabs(value) / q) * q;
    return std::copysign(std::min(rounded, largest), value);
  }
};

struct ScaleModel {
  double amax_floor = 0;
  bool power_of_two = false;

  /// As f32, one rounding.
  double scale_of(double amax, DType dtype) const {
    const double reach = std::max(amax, static_cast<double>(static_cast<float>(amax_floor)));
    if (reach == 0) return 1;
    const double quotient = reach / Fp8Grid::of(dtype).largest;
    const double scale =
        std::max(static_cast<double>(static_cast<float>(quotient)), std::ldexp(1.0, -126));
    if (!power_of_two) return scale;
    int exponent = 0;
    const double fraction = std::frexp(scale, &exponent);
    return std::ldexp(1.0, fraction == 0.5 ? exponent - 1 : exponent);
  }
};

/// What is rounded to FP8: the f32 product with the f32 reciprocal.
inline double scaled_value(double value, double scale) {
  const double inverse = static_cast<double>(static_cast<float>(1 / scale));
  return static_cast<double>(static_cast<float>(value * inverse));
}

}  // namespace cadre::contract
