// The epilogue of a product: what is computed from its sums before they are rounded and written,
//   row_scale[r] * (alpha_g * sum + bias_scale[r] * bias_g) + beta_g * c[r],
// and, without C, an activation of it, rounded to the result's type first.
// One struct for every op and backend, carried whole from the op to the kernel.
#pragma once

#include "cadre/activation.h"
#include "cadre/tensor.h"
#include "plan/operand_layout.h"

namespace cadre::plan {

/// Pointers and values.
struct Epilogue {
  GroupScalars alpha = 1.0;
  GroupScalars beta = 0.0;
  GroupedTensor c{};  ///< always set: out itself unless the caller gave another
  GroupedTensor bias{};
  TensorView bias_scale{};
  TensorView row_scale{};
  Activation activation{};
  TensorView preactivation{};  ///< [m, n]: what the activation is applied to, written beside out
};

/// What a choice depends on.
struct EpilogueForm {
  bool has_alpha = false;  ///< anything but the constant 1
  bool has_beta = false;   ///< anything but the constant 0: C is read and uncovered rows are kept
  bool has_bias_scale = false;
  bool has_row_scale = false;
  OperandLayout c{};  ///< absent where C is out
  OperandLayout bias{};
  Activation activation{};
  OperandLayout preactivation{};

  bool activates() const { return activation.kind != ActivationKind::kNone; }
  friend bool operator==(const EpilogueForm&, const EpilogueForm&) = default;
};

}  // namespace cadre::plan
