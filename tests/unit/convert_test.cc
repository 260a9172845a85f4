// bf16 and f16 conversions against an independent, bit-level definition: exhaustively over all
// 65,536 values and all ties between neighbours, and on random numbers.
#include "core/convert.h"

#include <gtest/gtest.h>

#include <random>

namespace cadre {
namespace {

/// A binary format with a sign bit, `exponent_bits` and `fraction_bits`, as IEEE 754 defines it.
struct Format {
  DType dtype;
  int exponent_bits;
  int fraction_bits;
  float (*to_float)(uint16_t);
  uint16_t (*from_float)(float);

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t infinity() const { return ((1u << exponent_bits) - 1u) << fraction_bits; }

  double value_of(uint32_t bits) const {
    const bool negative = (bits & 0x8000u) != 0;
    const auto exponent = static_cast<int>((bits & 0x7fffu) >> fraction_bits);
    const uint32_t fraction = bits & ((1u << fraction_bits) - 1u);
    double magnitude = 0;
    if (exponent == (1 << exponent_bits) - 1) {
      magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                                : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      magnitude = std::ldexp(static_cast<double>(fraction), 1 - bias() - fraction_bits);
    } else {
      const double significand = 1.0 + std::ldexp(static_cast<double>(fraction), -fraction_bits);
      magnitude = std::ldexp(significand, exponent - bias());
    }
    return negative ? -magnitude : magnitude;
  }

  /// For rounding, infinity stands where the next finite number would be.
  double rounding_value_of(uint32_t bits) const {
    return bits == infinity() ? std::ldexp(1.0, (1 << exponent_bits) - 1 - bias()) : value_of(bits);
  }

  /// To nearest, ties to the even fraction; not for NaN.
  uint16_t round(double value) const {
    const uint32_t sign = std::signbit(value) ? 0x8000u : 0u;
    const double magnitude = std::fabs(value);
    if (magnitude >= rounding_value_of(infinity())) {
      return static_cast<uint16_t>(sign | infinity());
    }
    uint32_t below = 0;  // bits grow with the magnitude: find the neighbours by bisection
    uint32_t above = infinity();
    while (above - below > 1) {
      const uint32_t middle = (below + above) / 2;
      (rounding_value_of(middle) <= magnitude ? below : above) = middle;
    }
    const double to_below = magnitude - rounding_value_of(below);  // exact: close neighbours
    const double to_above = rounding_value_of(above) - magnitude;
    const bool up = to_above < to_below || (to_above == to_below && (below & 1u) != 0);
    return static_cast<uint16_t>(sign | (up ? above : below));
  }

  bool is_nan(uint32_t bits) const { return (bits & 0x7fffu) > infinity(); }
};

// Through memory that is large enough for every type: the compiler inlines all of their cases.
uint16_t from_double(DType dtype, double value) {
  uint16_t memory[4] = {};
  store_rounded(memory, dtype, 0, value);
  return memory[0];
}

double to_double(DType dtype, uint16_t bits) {
  const uint16_t memory[4] = {bits, 0, 0, 0};
  return load_as_double(memory, dtype, 0);
}

class Conversion : public testing::TestWithParam<Format> {};

TEST_P(Conversion, EveryValueWidensExactly) {
  const Format& format = GetParam();
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float widened = format.to_float(bits);
    const double through_load = to_double(format.dtype, bits);
    if (format.is_nan(bits)) {
      ASSERT_TRUE(std::isnan(widened)) << i;
      ASSERT_TRUE(std::isnan(through_load)) << i;
      continue;
    }
    ASSERT_EQ(static_cast<double>(widened), format.value_of(bits)) << i;
    ASSERT_EQ(through_load, format.value_of(bits)) << i;
    ASSERT_EQ(std::signbit(widened), (bits & 0x8000u) != 0) << i;
  }
}

TEST_P(Conversion, EveryValueComesBack) {
  const Format& format = GetParam();
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const uint16_t back = format.from_float(format.to_float(bits));
    const uint16_t back_from_double = from_double(format.dtype, to_double(format.dtype, bits));
    if (format.is_nan(bits)) {
      ASSERT_TRUE(format.is_nan(back)) << i;
      ASSERT_TRUE(format.is_nan(back_from_double)) << i;
      ASSERT_EQ(back & 0x8000u, bits & 0x8000u) << i;
    } else {
      ASSERT_EQ(back, bits);
      ASSERT_EQ(back_from_double, bits);
    }
  }
}

TEST_P(Conversion, TiesGoToEvenAndNeighboursOfTiesDoNot) {
  const Format& format = GetParam();
  for (uint32_t bits = 0; bits < format.infinity(); ++bits) {
    const double below = format.rounding_value_of(bits);
    const double above = format.rounding_value_of(bits + 1);
    const double tie = below + (above - below) / 2;
    for (double value : {tie, std::nextafter(tie, 0.0), std::nextafter(tie, above * 2), -tie,
                         std::nextafter(-tie, 0.0)}) {
      ASSERT_EQ(from_double(format.dtype, value), format.round(value)) << bits << " " << value;
    }
    const auto narrow = static_cast<float>(tie);  // exact: f32 has more bits than both
    for (float value : {narrow, std::nextafter(narrow, 0.0f), std::nextafter(narrow, 2 * narrow)}) {
      ASSERT_EQ(format.from_float(value), format.round(static_cast<double>(value)))
          << bits << " " << value;
      ASSERT_EQ(format.from_float(-value), format.round(-static_cast<double>(value)));
    }
  }
}

TEST_P(Conversion, RandomNumbersOfEveryMagnitudeRoundToNearest) {
  const Format& format = GetParam();
  std::mt19937_64 engine(5);
  for (int i = 0; i < 300000; ++i) {
    const auto value = std::bit_cast<double>(engine());
    if (!std::isnan(value)) {
      ASSERT_EQ(from_double(format.dtype, value), format.round(value));
    }
    const auto narrow = std::bit_cast<float>(static_cast<uint32_t>(engine()));
    if (std::isnan(narrow)) {
      ASSERT_TRUE(format.is_nan(format.from_float(narrow)));
    } else {
      ASSERT_EQ(format.from_float(narrow), format.round(static_cast<double>(narrow)));
    }
    // Magnitudes near 1, where nearly all numbers are.
    const double common = std::ldexp(static_cast<double>(engine() >> 11) * 0x1p-53,
                                     static_cast<int>(engine() % 40) - 26);
    ASSERT_EQ(from_double(format.dtype, common), format.round(common));
  }
}

TEST_P(Conversion, EdgesOfTheRange) {
  const Format& format = GetParam();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(from_double(format.dtype, infinity), format.infinity());
  EXPECT_EQ(from_double(format.dtype, -infinity), format.infinity() | 0x8000u);
  EXPECT_EQ(from_double(format.dtype, 0.0), 0);
  EXPECT_EQ(from_double(format.dtype, -0.0), 0x8000);
  EXPECT_EQ(from_double(format.dtype, std::numeric_limits<double>::max()), format.infinity());
  EXPECT_EQ(from_double(format.dtype, std::numeric_limits<double>::denorm_min()), 0);
  EXPECT_EQ(from_double(format.dtype, -std::numeric_limits<double>::denorm_min()), 0x8000);
  EXPECT_TRUE(format.is_nan(from_double(format.dtype, std::numeric_limits<double>::quiet_NaN())));
  const double largest = format.value_of(format.infinity() - 1);
  const double limit = (largest + format.rounding_value_of(format.infinity())) / 2;
  EXPECT_EQ(from_double(format.dtype, std::nextafter(limit, 0.0)), format.infinity() - 1);
  EXPECT_EQ(from_double(format.dtype, limit), format.infinity());
  const double smallest = format.value_of(1);
  EXPECT_EQ(from_double(format.dtype, smallest / 2), 0);
  EXPECT_EQ(from_double(format.dtype, std::nextafter(smallest / 2, 1.0)), 1);
}

INSTANTIATE_TEST_SUITE_P(Formats, Conversion,
                         testing::Values(Format{DType::kBF16, 8, 7, bf16_to_float, float_to_bf16},
                                         Format{DType::kF16, 5, 10, f16_to_float, float_to_f16}),
                         [](const auto& format) {
                           return std::string(name_of(format.param.dtype));
                         });

TEST(Conversion64, OtherTypesAreReadAndWrittenAsTheyAre) {
  const double f64 = 1.0 / 3;
  const auto f32 = static_cast<float>(f64);
  const int8_t i8 = -128;
  const int32_t i32 = INT32_MIN;
  const uint32_t u32 = UINT32_MAX;
  EXPECT_EQ(load_as_double(&f64, DType::kF64, 0), f64);
  EXPECT_EQ(load_as_double(&f32, DType::kF32, 0), static_cast<double>(f32));
  EXPECT_EQ(load_as_double(&i8, DType::kI8, 0), -128);
  EXPECT_EQ(load_as_double(&i32, DType::kI32, 0), -2147483648.0);
  EXPECT_EQ(load_as_double(&u32, DType::kU32, 0), 4294967295.0);
  float stored = 0;
  store_rounded(&stored, DType::kF32, 0, f64);
  EXPECT_EQ(stored, f32);
}

}  // namespace
}  // namespace cadre
