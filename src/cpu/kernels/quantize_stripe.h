// What quantize and dequantize do to short stripes of rows, over any vector type. The loops have a
// constant length and no branch: the compiler makes vectors of them. For kernel files only, behind
// the vectors and activation_rows.h.
#pragma once

#include "core/fp8_scale.h"
#include "cpu/kernels/activation_rows.h"

namespace cadre::cpu {
namespace {

template <class V, ActivationKind kKind>
void load_stripe_as(const StripeOfRow& args, float* values) {
  static_assert(kStripeColumns % kColumnsOfBlock == 0);
  const ClampParameters<float> clamp = clamp_of<V>(args.activation);
  GateAndUp<V> in;
  for (int64_t c = 0; c < kStripeColumns; c += kColumnsOfBlock) {
    const int64_t left = args.count - c < kColumnsOfBlock ? args.count - c : kColumnsOfBlock;
    float* const to = values + c;
    if (left <= 0) {
      for (int64_t i = 0; i < kColumnsOfBlock; ++i) to[i] = 0;
      continue;
    }
    in.load(args.row, args.activation, args.col + c, left);
    for (int64_t i = 0; i < kColumnsOfBlock; ++i) {
      to[i] = activate_with<kKind, float>(in.gate.values[i], in.up.values[i], clamp).value;
    }
    // A function of zero need not be zero.
    for (int64_t i = left; i < kColumnsOfBlock; ++i) to[i] = 0;
  }
}

template <class V>
void load_stripe(const StripeOfRow& args, float* values) {
  if (args.row.data == nullptr) {
    for (int64_t c = 0; c < kStripeColumns; ++c) values[c] = 0;
    return;
  }
  if (args.activation.kind == ActivationKind::kNone) {
    load_block<V>(args.row, args.col, args.count, values);
    const int64_t rest = args.count - kColumnsOfBlock;
    load_block<V>(args.row, args.col + kColumnsOfBlock, rest > 0 ? rest : 0,
                  values + kColumnsOfBlock);
  } else {
    with_activation_kind(args.activation.kind, [&](auto kind) {
      load_stripe_as<V, decltype(kind)::value>(args, values);
    });
  }
  if (args.scale == 1.0f) return;
  for (int64_t c = 0; c < kStripeColumns; ++c) values[c] *= args.scale;
}

inline float stripe_amax(const float* values, int64_t count) {
  constexpr int64_t kLanes = 32;
  float lanes[kLanes] = {};
  for (int64_t c = 0; c < count; c += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const float magnitude = finite_magnitude(values[c + i]);
      lanes[i] = magnitude > lanes[i] ? magnitude : lanes[i];
    }
  }
  float largest = 0;
  for (int64_t i = 0; i < kLanes; ++i) largest = lanes[i] > largest ? lanes[i] : largest;
  return largest;
}

inline void raise_stripe_amaxes(const float* values, float* amaxes) {
  for (int64_t c = 0; c < kStripeColumns; ++c) {
    const float magnitude = finite_magnitude(values[c]);
    amaxes[c] = magnitude > amaxes[c] ? magnitude : amaxes[c];
  }
}

template <class Type>
void to_codes_of(const float* values, const float* inverses, uint8_t* codes) {
  for (int64_t c = 0; c < kStripeColumns; ++c) codes[c] = code_of<Type>(values[c], inverses[c]);
}

inline void stripe_to_codes(const float* values, const float* inverses, DType type,
                            uint8_t* codes) {
  if (type == DType::kE4M3) return to_codes_of<E4M3>(values, inverses, codes);
  to_codes_of<E5M2>(values, inverses, codes);
}

template <class Type>
void from_codes_of(const uint8_t* codes, const float* scales, float* values) {
  for (int64_t c = 0; c < kStripeColumns; ++c) values[c] = fp8_to_float<Type>(codes[c]) * scales[c];
}

template <class V>
void stripe_from_codes(const uint8_t* codes, const float* scales, DType type, const MatrixRef& out,
                       int64_t count) {
  float values[kStripeColumns];
  if (type == DType::kE4M3) {
    from_codes_of<E4M3>(codes, scales, values);
  } else {
    from_codes_of<E5M2>(codes, scales, values);
  }
  store_block<V>(out, 0, count, values);
}

template <class V>
inline constexpr StripeKernel kStripe = {.load = &load_stripe<V>,
                                         .amax = &stripe_amax,
                                         .raise_amaxes = &raise_stripe_amaxes,
                                         .to_codes = &stripe_to_codes,
                                         .from_codes = &stripe_from_codes<V>};

}  // namespace
}  // namespace cadre::cpu
