// FP8 conversions against the table of all codes as OCP defines them: every code, every bf16 and
// f16 number, every tie between neighbours.
#include "core/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/convert.h"

namespace cadre {
namespace {

/// The definition, without a shared line: values from exponent and fraction, rounding by looking
/// for the nearest.
struct Format {
  DType dtype;
  int exponent_bits;
  uint8_t largest;   ///< code of the largest number
  uint8_t overflow;  ///< code of what is too large
  float (*to_float)(uint8_t);
  uint8_t (*from_float)(float);
  uint8_t (*saturated)(float);

  double value_of(unsigned code) const {
    const int fraction_bits = 7 - exponent_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(code) >> fraction_bits;
    const int fraction = static_cast<int>(code) & ((1 << fraction_bits) - 1);
    const double significand = std::ldexp(fraction, -fraction_bits) + (exponent > 0 ? 1 : 0);
    return std::ldexp(significand, (exponent > 0 ? exponent : 1) - bias);
  }

  uint8_t rounded(double value, bool saturate) const {
    const unsigned sign = std::signbit(value) ? 0x80u : 0u;
    const double magnitude = std::fabs(value);
    const unsigned beyond = saturate ? largest : overflow;
    // Half a step above the largest still rounds to it if its fraction is even.
    const double limit = (value_of(largest) + value_of(largest + 1u)) / 2;
    const bool tie_goes_down = largest % 2 == 0;
    if (magnitude > limit || (magnitude == limit && !tie_goes_down)) {
      return static_cast<uint8_t>(sign | beyond);
    }
    unsigned best = 0;
    for (unsigned code = 1; code <= largest; ++code) {
      const double distance = std::fabs(magnitude - value_of(code));
      const double shortest = std::fabs(magnitude - value_of(best));
      if (distance < shortest || (distance == shortest && code % 2 == 0)) best = code;
    }
    return static_cast<uint8_t>(sign | best);
  }
};

class Fp8 : public testing::TestWithParam<Format> {
 protected:
  void expect_rounded(float value) const {
    const Format& format = GetParam();
    if (std::isnan(value)) {
      for (const uint8_t code : {format.from_float(value), format.saturated(value)}) {
        ASSERT_TRUE(std::isnan(format.to_float(code))) << value;
        ASSERT_EQ((code & 0x80) != 0, std::signbit(value));
      }
      return;
    }
    ASSERT_EQ(format.from_float(value), format.rounded(static_cast<double>(value), false)) << value;
    ASSERT_EQ(format.saturated(value), format.rounded(static_cast<double>(value), true)) << value;
  }
};

TEST_P(Fp8, EveryCodeWidensExactlyAndComesBack) {
  const Format& format = GetParam();
  for (unsigned i = 0; i < 256; ++i) {
    const auto bits = static_cast<uint8_t>(i);
    const unsigned code = i & 0x7fu;
    const float widened = format.to_float(bits);
    const double loaded = load_as_double(&bits, format.dtype, 0);
    EXPECT_EQ(std::signbit(widened), i >= 0x80u) << i;
    if (code > format.largest) {
      const bool infinite = format.dtype == DType::kE5M2 && code == format.overflow;
      EXPECT_EQ(std::isinf(widened), infinite) << i;
      EXPECT_EQ(std::isnan(widened), !infinite) << i;
      EXPECT_EQ(std::isnan(loaded), !infinite) << i;
      continue;
    }
    const double expected = (i >= 0x80u ? -1 : 1) * format.value_of(code);
    EXPECT_EQ(static_cast<double>(widened), expected) << i;
    EXPECT_EQ(loaded, expected) << i;
    EXPECT_EQ(format.from_float(widened), bits);
    EXPECT_EQ(format.saturated(widened), bits);
    uint8_t stored = 0;
    store_rounded(&stored, format.dtype, 0, expected);
    EXPECT_EQ(stored, bits);
  }
}

TEST_P(Fp8, EveryBf16AndF16NumberRoundsToNearest) {
  for (unsigned i = 0; i < 0x10000; ++i) {
    expect_rounded(bf16_to_float(static_cast<uint16_t>(i)));
    expect_rounded(f16_to_float(static_cast<uint16_t>(i)));
  }
}

TEST_P(Fp8, TiesGoToEvenAndNeighboursOfTiesDoNot) {
  const Format& format = GetParam();
  for (unsigned code = 0; code <= format.largest; ++code) {
    const double tie = (format.value_of(code) + format.value_of(code + 1)) / 2;
    const auto narrow = static_cast<float>(tie);  // exact: f32 has more bits
    for (const float value : {narrow, std::nextafter(narrow, 0.0f), std::nextafter(narrow, 1e9f)}) {
      expect_rounded(value);
      expect_rounded(-value);
    }
    // From double there is one rounding, not two.
    for (const double value : {tie, std::nextafter(tie, 0.0), std::nextafter(tie, 1e9)}) {
      uint8_t stored = 0;
      store_rounded(&stored, format.dtype, 0, value);
      EXPECT_EQ(stored, format.rounded(value, false)) << value;
    }
  }
}

TEST_P(Fp8, RandomNumbersOfEveryMagnitudeRoundToNearest) {
  std::mt19937_64 engine(7);
  for (int i = 0; i < 30000; ++i) {
    expect_rounded(std::bit_cast<float>(static_cast<uint32_t>(engine())));
    expect_rounded(static_cast<float>(std::ldexp(static_cast<double>(engine() >> 11) * 0x1p-53,
                                                 static_cast<int>(engine() % 40) - 22)));
  }
}

TEST_P(Fp8, InfinityIsTheLargestNumberWhenSaturated) {
  const Format& format = GetParam();
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(format.saturated(infinity), format.largest);
  EXPECT_EQ(format.saturated(-infinity), 0x80 | format.largest);
  EXPECT_EQ(format.from_float(infinity), format.overflow);
  EXPECT_EQ(format.from_float(-infinity), 0x80 | format.overflow);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, Fp8,
    testing::Values(Format{DType::kE4M3, 4, 0x7e, 0x7f, fp8_to_float<E4M3>, float_to_fp8<E4M3>,
                           float_to_fp8<E4M3, Overflow::kSaturate>},
                    Format{DType::kE5M2, 5, 0x7b, 0x7c, fp8_to_float<E5M2>, float_to_fp8<E5M2>,
                           float_to_fp8<E5M2, Overflow::kSaturate>}),
    [](const auto& format) { return std::string(name_of(format.param.dtype)); });

TEST(E8M0, EveryPowerOfTwoWidensExactlyAndComesBack) {
  for (unsigned i = 0; i < 255; ++i) {
    const auto bits = static_cast<uint8_t>(i);
    const float widened = e8m0_to_float(bits);
    EXPECT_EQ(static_cast<double>(widened), std::ldexp(1.0, static_cast<int>(i) - 127)) << i;
    EXPECT_EQ(load_as_double(&bits, DType::kE8M0, 0), static_cast<double>(widened));
    EXPECT_EQ(float_to_e8m0(widened), bits);
  }
  EXPECT_TRUE(std::isnan(e8m0_to_float(0xff)));
}

TEST(E8M0, OtherNumbersGoToTheNearestPowerOfTwo) {
  EXPECT_EQ(float_to_e8m0(1.49f), 127);
  EXPECT_EQ(float_to_e8m0(1.5f), 128);
  EXPECT_EQ(float_to_e8m0(0.0f), 0);
  EXPECT_EQ(float_to_e8m0(0x1.8p-127f), 1);
  EXPECT_EQ(float_to_e8m0(0x1.4p-127f), 0);
  EXPECT_EQ(float_to_e8m0(0x1.4p127f), 254);
  for (const float value : {-1.0f, 0x1.8p127f, std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(float_to_e8m0(value), 0xff) << value;
  }
}

}  // namespace
}  // namespace cadre
