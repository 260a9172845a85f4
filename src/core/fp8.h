// The 8-bit floating-point types of OCP: e4m3 (no infinities), e5m2 and the powers of two e8m0. For
// the host and for kernels. Rounding is to nearest, ties to even, and happens once. The functions
// have internal linkage: kernel files are compiled for different machines.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"

namespace cadre {

/// What an FP8 type is made of. Codes are without the sign bit.
struct E4M3 {
  static constexpr int kFractionBits = 3;
  static constexpr int kBias = 7;
  static constexpr uint32_t kLargest = 0x7e;
  static constexpr uint32_t kNan = 0x7f;
  static constexpr uint32_t kOverflow = kNan;  ///< what is too large, and infinity
  static constexpr float kMax = 448;
};
struct E5M2 {
  static constexpr int kFractionBits = 2;
  static constexpr int kBias = 15;
  static constexpr uint32_t kLargest = 0x7b;
  static constexpr uint32_t kNan = 0x7e;
  static constexpr uint32_t kOverflow = 0x7c;
  static constexpr float kMax = 57344;
};

/// What becomes of a number above the largest of the type, and of infinity.
enum class Overflow {
  kAsIeee,          ///< infinity, or NaN in a type without it
  kSaturate,        ///< the largest number of its sign
  kSaturateFinite,  ///< the largest number for a number, kAsIeee for infinity
};

namespace {

/// NaN stays NaN and keeps its sign. Without branches, so that a compiler makes vector code of a
/// loop over it.
template <typename Type, Overflow kOverflow = Overflow::kAsIeee>
CADRE_HOST_DEVICE uint8_t float_to_fp8(float value) {
  constexpr int kDropped = 23 - Type::kFractionBits;
  constexpr uint32_t kRebase = static_cast<uint32_t>(127 - Type::kBias) << 23;
  constexpr uint32_t kInfinity = 0x7f800000u;
  // Added to a subnormal, it puts the last place of the sum at the type's smallest number, so the
  // addition itself rounds to even.
  constexpr auto kAligner =
      std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - Type::kBias + kDropped) << 23);
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + kAligner) -
                             std::bit_cast<uint32_t>(kAligner);
  const uint32_t rebased = magnitude - kRebase;
  const uint32_t normal =
      (rebased + ((1u << (kDropped - 1)) - 1u) + ((rebased >> kDropped) & 1u)) >> kDropped;
  uint32_t code = magnitude < kRebase + (1u << 23) ? subnormal : normal;
  uint32_t beyond = Type::kOverflow;
  if (kOverflow == Overflow::kSaturate) beyond = Type::kLargest;
  if (kOverflow == Overflow::kSaturateFinite) {
    beyond = magnitude < kInfinity ? Type::kLargest : Type::kOverflow;
  }
  code = code > Type::kLargest ? beyond : code;
  code = magnitude > kInfinity ? Type::kNan : code;
  return static_cast<uint8_t>(sign | code);
}

/// Exact.
template <typename Type>
CADRE_HOST_DEVICE float fp8_to_float(uint8_t bits) {
  constexpr uint32_t kRebase = static_cast<uint32_t>(127 - Type::kBias) << 23;
  constexpr auto kSmallest = std::bit_cast<float>(
      static_cast<uint32_t>(127 + 1 - Type::kBias - Type::kFractionBits) << 23);
  const uint32_t sign = static_cast<uint32_t>(bits & 0x80u) << 24;
  const uint32_t code = bits & 0x7fu;
  uint32_t magnitude = 0;
  if (code > Type::kLargest) {
    const bool infinite = Type::kOverflow != Type::kNan && code == Type::kOverflow;
    magnitude = infinite ? 0x7f800000u : 0x7fc00000u;
  } else if (code >> Type::kFractionBits == 0) {
    magnitude = std::bit_cast<uint32_t>(static_cast<float>(code) * kSmallest);
  } else {
    magnitude = (code << (23 - Type::kFractionBits)) + kRebase;
  }
  return std::bit_cast<float>(sign | magnitude);
}

/// 2^(bits - 127); 0xff is NaN. 2^-127 is a subnormal f32.
CADRE_HOST_DEVICE float e8m0_to_float(uint8_t bits) {
  if (bits == 0xff) return std::bit_cast<float>(0x7fc00000u);
  return std::bit_cast<float>(bits == 0 ? 0x00400000u : static_cast<uint32_t>(bits) << 23);
}

/// The power of two that is nearest in value, a tie away from zero. Zero becomes 2^-127; what is
/// negative, too large or not finite becomes NaN.
CADRE_HOST_DEVICE uint8_t float_to_e8m0(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (bits >= 0x7f400000u) return 0xff;
  if (bits < 0x00800000u) return bits >= 0x00600000u ? 1 : 0;
  return static_cast<uint8_t>((bits + 0x00400000u) >> 23);
}

}  // namespace
}  // namespace cadre
