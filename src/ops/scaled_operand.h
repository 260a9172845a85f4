// Checks of quantised operands: that an FP8 operand has the scales its mode asks for, and how they
// lie by their roles in the product.
#pragma once

#include "cadre/scaled_tensor.h"
#include "ops/dispatch.h"
#include "plan/scale_form.h"

namespace cadre::ops {

/// What holds the data.
enum class ScaledKind {
  kRows,      ///< [outer, inner]: gmm's lhs, and tgmm's operands with one scale for all
  kColumns,   ///< a column-wise copy, [outer, capacity]
  kWeights,   ///< one [outer, inner] or [inner, outer] matrix for each group: gmm's rhs
  kMatrices,  ///< the same, and blocks of kBlock128 may be of one row, too: grouped_gemm's operands
};

struct ScaledOperand {
  std::string_view argument;
  const Scales& scales;
  DType dtype = DType::kInvalid;
  ScaledKind kind = ScaledKind::kRows;
  int64_t num_groups = 0;  ///< of the weights; for kColumns, of group_sizes
  int64_t outer = 0;
  int64_t inner = 0;         ///< not read for kColumns
  bool inner_first = false;  ///< weights are stored [inner, outer]
};

/// FP8 data come with scales of the mode's shape and type on the data's device, other types
/// without.
void check_scales(Checker& checker, const ScaledOperand& operand, Device device,
                  plan::ScaleForm* form);

/// What amax writes: f32 in the shape of a mode's scales. Errors name the operand's argument.
void check_amax(Checker& checker, const ScaledOperand& operand, Device device,
                plan::ScaleForm* form);

/// The scales of both operands go together.
void check_scale_modes(Checker& checker, const ScaledOperand& lhs, const ScaledOperand& rhs);

/// Everything that lies in memory where it should: the groups of a column-wise copy fit its
/// capacity and its lines of scales, as far as the sizes lie on the host.
void check_column_room(Checker& checker, const ScaledOperand& operand, int64_t capacity,
                       const std::vector<int64_t>& host_offsets);

}  // namespace cadre::ops
