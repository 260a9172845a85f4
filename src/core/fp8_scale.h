// How quantize chooses a scale, for every backend: divisions and products of f32, each rounded
// once, so that all of them have the same bits.
#pragma once

#include "core/fp8.h"

namespace cadre {

struct ScaleRule {
  float amax_floor = 0;
  bool power_of_two = false;
};

/// Below this a scale or its reciprocal would be subnormal.
inline constexpr float kSmallestScale = 0x1p-126f;

namespace {

/// amax >= 0 and finite. `largest` is that of the type.
CADRE_HOST_DEVICE float scale_of(float amax, float largest, const ScaleRule& rule) {
  const float reach = amax > rule.amax_floor ? amax : rule.amax_floor;
  if (reach == 0) return 1;
  float scale = reach / largest;
  if (scale < kSmallestScale) scale = kSmallestScale;
  if (!rule.power_of_two) return scale;
  // Up to the next power of two; the fraction of one is zero already.
  const auto bits = std::bit_cast<uint32_t>(scale);
  return std::bit_cast<float>((bits + 0x007fffffu) & 0x7f800000u);
}

/// |value| where that is finite, else 0.
CADRE_HOST_DEVICE float finite_magnitude(float value) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(value) & 0x7fffffffu;
  return std::bit_cast<float>(magnitude < 0x7f800000u ? magnitude : 0u);
}

/// The code of value * inverse, where inverse is 1 / scale.
template <typename Type>
CADRE_HOST_DEVICE uint8_t code_of(float value, float inverse) {
  return float_to_fp8<Type, Overflow::kSaturateFinite>(value * inverse);
}

}  // namespace
}  // namespace cadre
