// Checks of an Activation, for every op that takes one.
#pragma once

#include <string_view>

#include "cadre/activation.h"
#include "ops/checker.h"

namespace cadre::ops {

/// Kind, layout and parameters.
inline void check_activation(Checker& checker, const Activation& activation) {
  const auto kind = static_cast<int32_t>(activation.kind);
  checker.expect(kind >= 0 && kind <= static_cast<int32_t>(ActivationKind::kClampedSwiglu),
                 "activation.kind", kind, "0 (none) to 8 (clamped swiglu)");
  const auto layout = static_cast<int32_t>(activation.layout);
  checker.expect(layout == 0 || layout == 1, "activation.layout", layout,
                 "0 (concatenated) or 1 (interleaved)");
  if (activation.kind != ActivationKind::kClampedSwiglu) return;
  checker.expect(activation.limit >= 0, "activation.limit", activation.limit, "0 or more");
}

/// The columns of a pre-activation: an even number where there is a gate.
inline void check_gate_width(Checker& checker, std::string_view argument, int64_t width,
                             const Activation& activation) {
  checker.expect(width % activation.columns() == 0, argument, width,
                 "an even number: a gate and an up part for each result");
}

}  // namespace cadre::ops
