// Activation: the function between the two products of an expert, and where its gate lies.
#pragma once

#include <cstdint>

namespace cadre {

enum class ActivationKind : int32_t {
  kNone = 0,  ///< x
  kSilu = 1,  ///< x * sigmoid(x)
  kGeluTanh = 2,
  kGeluErf = 3,
  kRelu2 = 4,  ///< max(x, 0)^2
  // From here on with a gate: the input has two numbers for each result.
  kSwiglu = 5,         ///< silu(gate) * up
  kGegluTanh = 6,      ///< gelu(gate) * up
  kGegluErf = 7,       ///< gelu(gate) * up
  kClampedSwiglu = 8,  ///< gate * sigmoid(alpha * gate) * (up + up_offset), both clamped (gpt-oss)
};

/// Where the gate and the up part of a row of width 2i lie.
enum class GateLayout : int32_t {
  kConcatenated = 0,  ///< gate 0 to i - 1, then up 0 to i - 1
  kInterleaved = 1,   ///< gate 0, up 0, gate 1, up 1, ...
};

struct Activation {
  ActivationKind kind = ActivationKind::kNone;
  GateLayout layout = GateLayout::kConcatenated;  ///< of kinds with a gate

  // kClampedSwiglu alone. gate = min(gate, limit), up = max(min(up, limit), -limit).
  double alpha = 1.702;
  double limit = 7.0;
  double up_offset = 1.0;

  constexpr bool gated() const { return kind >= ActivationKind::kSwiglu; }
  /// Columns of the input for each column of the result.
  constexpr int64_t columns() const { return gated() ? 2 : 1; }

  friend bool operator==(const Activation&, const Activation&) = default;
};

}  // namespace cadre
