// Single elements: 16-bit storage types, widened and rounded one at a time, for tails and odd
// strides. For kernel files only: the same conversions for the rest of the library are in src/core,
// but kernel files may not share code with it.
#pragma once

#include <cstdint>
#include <cstring>

#include "cadre/dtype.h"

namespace cadre::cpu {
namespace {

struct Bf16 {
  static constexpr DType kDType = DType::kBF16;
  uint16_t bits;
};
struct F16 {
  static constexpr DType kDType = DType::kF16;
  uint16_t bits;
};

// Codes of OCP FP8.
struct Fp8E4M3 {
  static constexpr DType kDType = DType::kE4M3;
  uint8_t bits;
};
struct Fp8E5M2 {
  static constexpr DType kDType = DType::kE5M2;
  uint8_t bits;
};

// One element at any address: callers may pass pointers that are not aligned to the element.
template <class T>
inline T read_one(const T* p) {
  T x;
  std::memcpy(&x, p, sizeof(T));
  return x;
}
template <class T>
inline void write_one(T* p, T x) {
  std::memcpy(p, &x, sizeof(T));
}

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

inline float widen_one(Bf16 x) { return float_of_bits(uint32_t{x.bits} << 16); }

inline float widen_one(F16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // As an f32 whose exponent is 112 too small; the product is exact, and right for subnormals too.
  return float_of_bits(sign | bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f));
}

// The upper half of an f16.
inline float widen_one(Fp8E5M2 x) { return widen_one(F16{static_cast<uint16_t>(x.bits << 8)}); }

// As an f16 whose exponent is 8 too small, but for NaN, which has no infinity beside it.
inline float widen_one(Fp8E4M3 x) {
  const uint32_t magnitude = x.bits & 0x7fu;
  const uint32_t nan = magnitude == 0x7fu ? 0x7c00u : 0u;
  const uint32_t f16 = (x.bits & 0x80u) << 8 | magnitude << 7 | nan;
  return widen_one(F16{static_cast<uint16_t>(f16)}) * 256.0f;
}

inline Bf16 round_to_bf16(float x) {
  const uint32_t u = bits_of_float(x);
  if (x != x) return {static_cast<uint16_t>((u >> 16) | 0x40u)};
  return {static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline F16 round_to_f16(float x) {
  const uint32_t u = bits_of_float(x);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u)
    return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u)
    return {static_cast<uint16_t>(sign | 0x7c00u)};  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {
    // Below 2^-14: adding 0.5 leaves multiples of 2^-24, rounded to nearest even, in the low bits.
    const uint32_t sum = bits_of_float(float_of_bits(magnitude) + 0.5f);
    return {static_cast<uint16_t>(sign | (sum - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | rounded >> 13)};
}

// An f64 to f32 by "round to odd": a following rounding to fewer bits is then as if done in one
// step.
inline float narrow_to_odd(double x) {
  const float f = static_cast<float>(x);
  const double back = static_cast<double>(f);
  if (back == x || x != x) return f;
  uint32_t bits = bits_of_float(f);
  if ((bits & 0x7fffffffu) == 0x7f800000u) return x - x == 0.0 ? float_of_bits(bits - 1u) : f;
  const bool away = x > 0.0 ? back > x : back < x;
  if (away) --bits;  // truncate
  return float_of_bits(bits | 1u);
}

}  // namespace
}  // namespace cadre::cpu
