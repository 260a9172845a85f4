// The activations and their derivatives, once for every place that computes them: the reference,
// the CPU kernels and the CUDA kernels. In f32 and f64; NaN in, NaN out.
//
// The f32 forms have no branch and call no function of the C library on a host, so that a compiler
// turns a loop over them into vector code, and every instruction set gives the same bits.
// Everything here has internal linkage: kernel files are compiled for different machines.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "cadre/activation.h"
#include "core/host_device.h"

namespace cadre {
namespace {

template <ActivationKind kKind>
using KindConstant = std::integral_constant<ActivationKind, kKind>;

/// f(KindConstant<kind>{}), so that `kind` is a constant in it.
template <typename F>
CADRE_HOST_DEVICE auto with_activation_kind(ActivationKind kind, F f) {
  switch (kind) {
    case ActivationKind::kSilu:
      return f(KindConstant<ActivationKind::kSilu>{});
    case ActivationKind::kGeluTanh:
      return f(KindConstant<ActivationKind::kGeluTanh>{});
    case ActivationKind::kGeluErf:
      return f(KindConstant<ActivationKind::kGeluErf>{});
    case ActivationKind::kRelu2:
      return f(KindConstant<ActivationKind::kRelu2>{});
    case ActivationKind::kSwiglu:
      return f(KindConstant<ActivationKind::kSwiglu>{});
    case ActivationKind::kGegluTanh:
      return f(KindConstant<ActivationKind::kGegluTanh>{});
    case ActivationKind::kGegluErf:
      return f(KindConstant<ActivationKind::kGegluErf>{});
    case ActivationKind::kClampedSwiglu:
      return f(KindConstant<ActivationKind::kClampedSwiglu>{});
    default:
      return f(KindConstant<ActivationKind::kNone>{});
  }
}

/// Both are within a few units of the last place.
CADRE_HOST_DEVICE double exp_of(double x) { return exp(x); }

CADRE_HOST_DEVICE float exp_of(float x) {
#if defined(__CUDA_ARCH__)
  // 2^(x log2 e), the product in two parts. expf would hold more constants in registers than a
  // kernel has left beside its sums. The result stays finite; its reciprocal is 0 there.
  x = x > 88.7f ? 88.7f : x;
  const float whole = x * 1.44269502f;
  const float rest = fmaf(x, 1.92596299e-8f, fmaf(x, 1.44269502f, -whole));
  const float power = exp2f(whole);
  return fmaf(power, 0.693147182f * rest, power);
#else
  // e^x = 2^n * e^r with |r| <= ln(2) / 2. Above 89 the result is infinite, below -104 it is zero.
  // A comparison with NaN is false and keeps it.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: a sum with it has n in its low bits
  const float shifted = x * 1.44269504f + kRound;
  const float n = shifted - kRound;
  // ln(2) in two parts; products with the first are exact.
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  // 2^n in two factors, since n goes from -150 to 128. The bias keeps the shift unsigned.
  const uint32_t biased = bits - 0x4b400000u + 254u;
  const uint32_t first_bits = (biased / 2) << 23;
  const uint32_t second_bits = (biased - biased / 2) << 23;
  float first;
  float second;
  std::memcpy(&first, &first_bits, sizeof(first));
  std::memcpy(&second, &second_bits, sizeof(second));
  return p * first * second;
#endif
}

CADRE_HOST_DEVICE double reciprocal(double x) { return 1.0 / x; }
CADRE_HOST_DEVICE float reciprocal(float x) {
#if defined(__CUDA_ARCH__)
  return __fdividef(1.0f, x);
#else
  return 1.0f / x;
#endif
}

template <typename T>
CADRE_HOST_DEVICE T sigmoid_of(T x) {
  return reciprocal(T{1} + exp_of(-x));
}

/// The normal distribution at x, and its density.
template <typename T>
struct NormalAt {
  T below;
  T density;
};

CADRE_HOST_DEVICE NormalAt<double> normal_at(double x) {
  return {0.5 * erfc(-0.70710678118654752440 * x), 0.39894228040143267794 * exp(-0.5 * x * x)};
}

CADRE_HOST_DEVICE NormalAt<float> normal_at(float x) {
  // erfc(z) = t * P(t) * e^(-z^2) with t = 1 / (1 + 0.3 z), to 2e-8 of its value for every z >= 0.
  const float z = 0.70710678f * (x < 0.0f ? -x : x);
  const float t = reciprocal(1.0f + 0.3f * z);
  float p = -0.12954096f;
  p = p * t + 0.48565802f;
  p = p * t + -0.5124914f;
  p = p * t + 0.54798836f;
  p = p * t + -0.09485682f;
  p = p * t + 0.21502486f;
  p = p * t + 0.14831035f;
  p = p * t + 0.17071989f;
  p = p * t + 0.16918768f;
  const float e = exp_of(-(z * z));
  const float tail = 0.5f * (p * t * e);
  return {x < 0.0f ? tail : 1.0f - tail, 0.39894228f * e};
}

/// A function of one number, and its derivative there.
template <typename T>
struct ValueAndSlope {
  T value;
  T slope;
};

/// 2 sqrt(2 / pi), and the same times the 0.044715 of the tanh form.
template <typename T>
inline constexpr T kGeluTwice = static_cast<T>(1.5957691216057307117);
template <typename T>
inline constexpr T kGeluCubic = static_cast<T>(0.044715 * 1.5957691216057307117);

/// The function that kind applies to its gate, or to all of its input where there is none.
template <ActivationKind kKind, typename T>
CADRE_HOST_DEVICE ValueAndSlope<T> gate_function(T x) {
  if constexpr (kKind == ActivationKind::kSilu || kKind == ActivationKind::kSwiglu) {
    const T s = sigmoid_of(x);
    return {x * s, s + x * s * (T{1} - s)};
  } else if constexpr (kKind == ActivationKind::kGeluTanh || kKind == ActivationKind::kGegluTanh) {
    // 0.5 * (1 + tanh(u)) = sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x^3)
    constexpr T kTwice = kGeluTwice<T>;
    constexpr T kCubic = kGeluCubic<T>;
    const T s = sigmoid_of(x * (kTwice + kCubic * (x * x)));
    // Where s is 1 or 0 its slope vanishes, and the cubic beside it may not be finite.
    const T flat = s * (T{1} - s);
    const T inner = x * (kTwice + T{3} * kCubic * (x * x));
    return {x * s, flat == T{0} ? s : s + flat * inner};
  } else if constexpr (kKind == ActivationKind::kGeluErf || kKind == ActivationKind::kGegluErf) {
    const NormalAt<T> normal = normal_at(x);
    return {x * normal.below, normal.below + x * normal.density};
  } else if constexpr (kKind == ActivationKind::kRelu2) {
    const T positive = x < T{0} ? T{0} : x;
    return {positive * positive, T{2} * positive};
  } else {
    return {x, T{1}};
  }
}

/// The parameters of kClampedSwiglu in the type that is computed in.
template <typename T>
struct ClampParameters {
  T alpha;
  T limit;
  T up_offset;

  ClampParameters() = default;
  CADRE_HOST_DEVICE explicit ClampParameters(const Activation& activation)
      : alpha(static_cast<T>(activation.alpha)),
        limit(static_cast<T>(activation.limit)),
        up_offset(static_cast<T>(activation.up_offset)) {}
};

/// The activation, and its derivative by gate and up. Without a gate the input is `gate`, and `up`
/// plays no part.
template <typename T>
struct Activated {
  T value;
  T d_gate;
  T d_up;
};

/// What of the result isn't used costs nothing.
template <ActivationKind kKind, typename T>
CADRE_HOST_DEVICE Activated<T> activate_with(T gate, T up, const ClampParameters<T>& clamp) {
  if constexpr (kKind == ActivationKind::kClampedSwiglu) {
    const T g = gate > clamp.limit ? clamp.limit : gate;
    const T low = up < -clamp.limit ? -clamp.limit : up;
    const T u = low > clamp.limit ? clamp.limit : low;
    const T s = sigmoid_of(clamp.alpha * g);
    const T shifted = u + clamp.up_offset;
    const T swish = g * s;
    const T slope = (s + clamp.alpha * swish * (T{1} - s)) * shifted;
    // A clamped input moves nothing.
    return {swish * shifted, gate > clamp.limit ? T{0} : slope,
            up < -clamp.limit || up > clamp.limit ? T{0} : swish};
  } else if constexpr (Activation{.kind = kKind}.gated()) {
    const ValueAndSlope<T> f = gate_function<kKind>(gate);
    return {f.value * up, f.slope * up, f.value};
  } else {
    const ValueAndSlope<T> f = gate_function<kKind>(gate);
    return {f.value, f.slope, T{0}};
  }
}

}  // namespace
}  // namespace cadre
