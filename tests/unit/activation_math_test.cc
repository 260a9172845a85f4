// The activations against definitions written down in long double, in f32 and f64, value and
// derivative.
#include "core/activation_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace cadre {
namespace {

using Real = long double;

constexpr ActivationKind kKinds[] = {
    ActivationKind::kNone,      ActivationKind::kSilu,     ActivationKind::kGeluTanh,
    ActivationKind::kGeluErf,   ActivationKind::kRelu2,    ActivationKind::kSwiglu,
    ActivationKind::kGegluTanh, ActivationKind::kGegluErf, ActivationKind::kClampedSwiglu};

Real sigmoid(Real x) { return 1 / (1 + std::exp(-x)); }

Real defined(const Activation& a, Real gate, Real up) {
  switch (a.kind) {
    case ActivationKind::kNone:
      return gate;
    case ActivationKind::kSilu:
    case ActivationKind::kSwiglu:
      return gate * sigmoid(gate) * (a.gated() ? up : 1);
    case ActivationKind::kGeluTanh:
    case ActivationKind::kGegluTanh:
      // (1 + tanh(u)) / 2 = sigmoid(2u), which doesn't cancel.
      return gate *
             sigmoid(2 * std::sqrt(2 / std::acos(Real{-1})) *
                     (gate + Real{0.044715} * gate * gate * gate)) *
             (a.gated() ? up : 1);
    case ActivationKind::kGeluErf:
    case ActivationKind::kGegluErf:
      return gate / 2 * std::erfc(-gate / std::sqrt(Real{2})) * (a.gated() ? up : 1);
    case ActivationKind::kRelu2:
      return gate > 0 ? gate * gate : 0;
    case ActivationKind::kClampedSwiglu: {
      const auto limit = static_cast<Real>(a.limit);
      const Real g = std::fmin(gate, limit);
      const Real u = std::fmax(std::fmin(up, limit), -limit);
      return g * sigmoid(static_cast<Real>(a.alpha) * g) * (u + static_cast<Real>(a.up_offset));
    }
  }
  return 0;
}

template <typename T>
Activated<T> computed(const Activation& a, T gate, T up) {
  return with_activation_kind(a.kind, [&](auto kind) {
    return activate_with<decltype(kind)::value, T>(gate, up, ClampParameters<T>(a));
  });
}

template <typename T>
std::vector<T> numbers() {
  std::vector<T> all = {T{0}, -T{0}, static_cast<T>(1e-30), static_cast<T>(-1e-30)};
  for (int i = -1200; i <= 1200; ++i) all.push_back(static_cast<T>(i) * static_cast<T>(0.0137));
  for (T big : {T{20}, T{50}, T{88}, T{90}, T{104}, T{1e4}, static_cast<T>(1e15)}) {
    all.push_back(big);
    all.push_back(-big);
  }
  return all;
}

/// The difference quotient of the definition, exact to about 1e-9 of its largest values.
Real slope(const Activation& a, Real gate, Real up, bool by_up) {
  const Real step = 1e-6L;
  const auto at = [&](Real d) {
    return by_up ? defined(a, gate, up + d) : defined(a, gate + d, up);
  };
  return (at(step) - at(-step)) / (2 * step);
}

template <typename T>
void expect_values() {
  const Real unit = std::numeric_limits<T>::epsilon();
  for (const ActivationKind kind : kKinds) {
    const Activation a{.kind = kind};
    for (const T gate : numbers<T>()) {
      for (const T up : {static_cast<T>(1.37), static_cast<T>(-8.1)}) {
        const Real expected = defined(a, gate, up);
        const Real scale = std::fabs(a.gated() ? static_cast<Real>(gate) * up : gate);
        const Real bound = 8 * unit * (std::fabs(expected) + std::fmin(scale, Real{10}) * unit);
        // Far in the tail of gelu the exponent's own rounding counts.
        const Real tail = 4 * unit * std::fabs(expected) * std::fmin(gate * Real{gate}, Real{120});
        ASSERT_LE(std::fabs(computed(a, gate, up).value - expected), bound + tail + 1e-37L)
            << static_cast<int>(kind) << " at " << gate << ", " << up;
      }
    }
  }
}

TEST(ActivationMath, ValuesInF32) { expect_values<float>(); }
TEST(ActivationMath, ValuesInF64) { expect_values<double>(); }

template <typename T>
void expect_slopes(Real bound) {
  for (const ActivationKind kind : kKinds) {
    const Activation a{.kind = kind};
    for (const T gate : numbers<T>()) {
      if (std::fabs(gate) > T{30}) continue;
      const T up = static_cast<T>(1.37);
      const Activated<T> got = computed(a, gate, up);
      const auto at = [&] {
        return ::testing::Message() << static_cast<int>(kind) << " at " << gate;
      };
      if (std::fabs(Real{gate} - 7) > 1e-3L &&
          std::fabs(Real{gate}) > 1e-5L) {  // corners of the clamps
        const Real expected = slope(a, gate, up, false);
        ASSERT_LE(std::fabs(got.d_gate - expected), bound * (1 + std::fabs(expected))) << at();
      }
      if (a.gated()) {
        const Real expected = slope(a, gate, up, true);
        ASSERT_LE(std::fabs(got.d_up - expected), bound * (1 + std::fabs(expected))) << at();
      }
    }
  }
}

TEST(ActivationMath, SlopesInF32) { expect_slopes<float>(2e-6L); }
TEST(ActivationMath, SlopesInF64) { expect_slopes<double>(1e-9L); }

TEST(ActivationMath, SlopesAreFiniteAtLargeNumbers) {
  for (const ActivationKind kind : kKinds) {
    for (const float gate : {-3e38f, -1e20f, 1e15f, 1e18f}) {
      const Activated<float> got = computed<float>({.kind = kind}, gate, 1.5f);
      EXPECT_TRUE(std::isfinite(got.d_gate)) << static_cast<int>(kind) << " at " << gate;
    }
  }
}

TEST(ActivationMath, ClampedInputsMoveNothing) {
  const Activation a{.kind = ActivationKind::kClampedSwiglu};
  EXPECT_EQ(computed<double>(a, 7.5, 1).d_gate, 0);
  EXPECT_NE(computed<double>(a, 7.5, 1).d_up, 0);
  EXPECT_EQ(computed<double>(a, 1, 7.5).d_up, 0);
  EXPECT_EQ(computed<double>(a, 1, -7.5).d_up, 0);
  EXPECT_EQ(computed<double>(a, 9, 8).value, computed<double>(a, 7, 7).value);
  EXPECT_NE(computed<double>(a, -9, 1).d_gate, 0);  // the gate has no lower limit
}

TEST(ActivationMath, NanStaysNan) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ActivationKind kind : kKinds) {
    const Activation a{.kind = kind};
    EXPECT_TRUE(std::isnan(computed<float>(a, nan, 1).value)) << static_cast<int>(kind);
    EXPECT_TRUE(std::isnan(computed<double>(a, std::nan(""), 1).value)) << static_cast<int>(kind);
    if (!a.gated()) continue;
    EXPECT_TRUE(std::isnan(computed<float>(a, 1, nan).value)) << static_cast<int>(kind);
    EXPECT_TRUE(std::isnan(computed<float>(a, nan, 1).d_up)) << static_cast<int>(kind);
  }
}

TEST(ActivationMath, ExponentialIsWithinTwoUnits) {
  for (float x = -87; x < 88.7f; x += 0.00137f) {
    const double exact = std::exp(static_cast<double>(x));
    ASSERT_NEAR(exp_of(x), exact, 1.2e-7 * 1.5 * exact) << x;
  }
  EXPECT_EQ(exp_of(200.0f), std::numeric_limits<float>::infinity());
  EXPECT_EQ(exp_of(-200.0f), 0.0f);
  EXPECT_EQ(exp_of(0.0f), 1.0f);
}

}  // namespace
}  // namespace cadre
