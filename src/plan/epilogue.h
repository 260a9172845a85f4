// The epilogue of a product: what is computed from its sums before they are rounded and written,
//   row_scale[r] * (alpha_g * sum + bias_scale[r] * bias_g) + beta_g * c[r],
// and, without C, an activation of it, rounded to the result's type first. Or the gradient of an
// activation (cadre/activate.h), where the product is the gradient of the activation's result.
// One struct for every op and backend, carried whole from the op to the kernel.
#pragma once

#include "cadre/activation.h"
#include "cadre/tensor.h"
#include "plan/operand_layout.h"

namespace cadre::plan {

/// grad is the product, rounded to the result's type; out becomes row_scale * activation(preact).
struct ActivationGradient {
  Activation activation{};
  TensorView preact{};     ///< [m, n], with a gate [m, 2n]
  TensorView row_scale{};  ///< [m]; default 1
  TensorView d_preact{};   ///< the shape of preact, or preact itself, or not given
  TensorView row_dot{};    ///< [m], or not given
};

struct ActivationGradientForm {
  Activation activation{};
  OperandLayout preact{};
  OperandLayout d_preact{};
  DType row_scale = DType::kF32;
  DType row_dot = DType::kF32;
  bool has_row_dot = false;

  bool given() const { return activation.kind != ActivationKind::kNone; }
  friend bool operator==(const ActivationGradientForm&, const ActivationGradientForm&) = default;
};

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
  ActivationGradient gradient{};
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
  ActivationGradientForm gradient{};

  bool activates() const { return activation.kind != ActivationKind::kNone; }
  friend bool operator==(const EpilogueForm&, const EpilogueForm&) = default;
};

}  // namespace cadre::plan
