// tgmm: out[g] = lhs[rows of group g]^T @ rhs[rows of group g], the weight gradient.
#pragma once

#include "cadre/context.h"
#include "cadre/scaled_tensor.h"

namespace cadre {

/// out_i = alpha_i * (lhs[rows_i]^T @ rhs[rows_i]) + beta_i * c_i; an empty group gives beta_i *
/// c_i. FP8 operands are column-wise copies ([k, capacity] and [n, capacity]), or with one scale
/// for all of the tensor, plain rows.
struct TgmmArgs {
  ScaledTensor lhs{};        ///< [m, k], or [rows, k] with lhs_rows
  ScaledTensor rhs{};        ///< [m, n], or [rows, n] with rhs_rows
  GroupSizes group_sizes{};  ///< at least g entries, their sum at most m
  GroupedTensor out{};       ///< [g, k, n], stacked or a list; g is the number of local groups

  /// [m] of i32 or i64: row r of the product is row lhs_rows[r] of lhs, or zeros where that is -1.
  TensorView lhs_rows{};
  TensorView rhs_rows{};  ///< the same for rhs
  GroupScalars alpha = 1.0;
  GroupScalars beta = 0.0;       ///< c is never read where beta is 0
  bool accumulate = false;       ///< the same as beta = 1
  GroupedTensor c{};             ///< shape of out; default: out itself
  GroupOffset group_offset = 0;  ///< index of out[0] among group_sizes
  CallOptions options{};
};

CADRE_API Status tgmm(Context& context, const TgmmArgs& args);
CADRE_API Status tgmm_workspace_size(Context& context, const TgmmArgs& args, size_t* size_bytes);

}  // namespace cadre
