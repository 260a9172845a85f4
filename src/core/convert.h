// Portable conversions of bf16 and f16 (fp8.h has those of 8 bits), and typed loads and stores
// through double.
// Rounding is to nearest, ties to even, and happens once.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cadre/dtype.h"
#include "core/fp8.h"

namespace cadre {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in f32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

/// Rounds a double to f32 so that a second rounding to a narrower type is still correct: inexact
/// results get their last mantissa bit set ("round to odd").
inline float double_to_float_round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  if (std::isnan(value) || static_cast<double>(nearest) == value) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const bool away = std::fabs(static_cast<double>(nearest)) > std::fabs(value);
  if (away) --bits;  // towards zero: one step back in magnitude (inf becomes the largest float)
  return std::bit_cast<float>(bits | 1u);
}

inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {  // NaN: keep the top of the payload, make it quiet
    return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // >= 65520: infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: a subnormal, a multiple of 2^-24
    // Adding 0.5 puts the value's last place at 2^-24, so the addition itself rounds to even.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rebased = magnitude - (112u << 23);
  return static_cast<uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
}

/// The element at `data[index]`, widened exactly.
inline double load_as_double(const void* data, DType dtype, int64_t index) {
  const char* at = static_cast<const char*>(data) + index * static_cast<int64_t>(size_of(dtype));
  const auto read = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kF64:
      return read(double{});
    case DType::kF32:
      return static_cast<double>(read(float{}));
    case DType::kBF16:
      return static_cast<double>(bf16_to_float(read(uint16_t{})));
    case DType::kF16:
      return static_cast<double>(f16_to_float(read(uint16_t{})));
    case DType::kI8:
      return static_cast<double>(read(int8_t{}));
    case DType::kI32:
      return static_cast<double>(read(int32_t{}));
    case DType::kU32:
      return static_cast<double>(read(uint32_t{}));
    case DType::kE4M3:
      return static_cast<double>(fp8_to_float<E4M3>(read(uint8_t{})));
    case DType::kE5M2:
      return static_cast<double>(fp8_to_float<E5M2>(read(uint8_t{})));
    case DType::kE8M0:
      return static_cast<double>(e8m0_to_float(read(uint8_t{})));
    default:
      return std::numeric_limits<double>::quiet_NaN();
  }
}

/// Writes `value` at `data[index]`, rounded once to a floating-point `dtype`. FP8 does not
/// saturate.
inline void store_rounded(void* data, DType dtype, int64_t index, double value) {
  char* at = static_cast<char*>(data) + index * static_cast<int64_t>(size_of(dtype));
  const auto write = [at](auto stored) { std::memcpy(at, &stored, sizeof(stored)); };
  switch (dtype) {
    case DType::kF64:
      write(value);
      break;
    case DType::kF32:
      write(static_cast<float>(value));
      break;
    case DType::kBF16:
      write(float_to_bf16(double_to_float_round_to_odd(value)));
      break;
    case DType::kF16:
      write(float_to_f16(double_to_float_round_to_odd(value)));
      break;
    case DType::kE4M3:
      write(float_to_fp8<E4M3>(double_to_float_round_to_odd(value)));
      break;
    case DType::kE5M2:
      write(float_to_fp8<E5M2>(double_to_float_round_to_odd(value)));
      break;
    case DType::kE8M0:
      write(float_to_e8m0(double_to_float_round_to_odd(value)));
      break;
    default:
      break;
  }
}

}  // namespace cadre
