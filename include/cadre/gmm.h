// gmm: out[rows of group g] = lhs[rows of group g] @ rhs[g].
#pragma once

#include "cadre/activation.h"
#include "cadre/context.h"
#include "cadre/scaled_tensor.h"

namespace cadre {

class PackedWeights;

/// What happens to rows that no local group covers: the tail (from sum(group_sizes) to m) and the
/// rows of groups that another shard holds.
enum class Tail : int32_t {
  kZero = 0,       ///< they become zero (unless beta or accumulate is given: then they are kept)
  kUntouched = 1,  ///< they keep what they hold
  kForbid = 2,     ///< sum(group_sizes) must equal m; foreign rows are kept
};

/// out[r] = row_scale[r] * (alpha_g * (lhs[r] @ rhs_g) + bias_scale[r] * bias_g) + beta_g * c[r]
struct GmmArgs {
  ScaledTensor lhs{};        ///< [m, k], or [rows, k] with lhs_rows
  ScaledGroups rhs{};        ///< [g, k, n], or [g, n, k] with transpose_rhs; stacked or a list
  GroupSizes group_sizes{};  ///< at least g entries, their sum at most m
  GroupedTensor out{};       ///< [m, n], or a list of [rows of group, n]

  /// [m] of i32 or i64: row r of the product is row lhs_rows[r] of lhs, or zeros where that is -1.
  TensorView lhs_rows{};
  bool transpose_rhs = false;
  GroupScalars alpha = 1.0;  ///< by local group
  GroupScalars beta = 0.0;   ///< by local group; c is never read where beta is 0
  bool accumulate = false;   ///< the same as beta = 1
  GroupedTensor c{};         ///< shape of out; default: out itself
  GroupedTensor bias{};      ///< [g, n], by local group; see GroupedTensor::vectors
  TensorView bias_scale{};   ///< [m]; default 1
  TensorView row_scale{};    ///< [m]; default 1
  /// Applied to what the formula gives, rounded to out's type first. out is [m, n], with a gate
  /// [m, n / 2]; there is no C, and rows that no local group covers become zero.
  Activation activation{};
  TensorView preactivation{};  ///< [m, n] of out's type: what the activation was applied to
  Tail tail = Tail::kZero;
  GroupOffset group_offset = 0;  ///< index of rhs[0] among group_sizes

  /// Weights packed ahead by pack_weights for this machine; `rhs` must still describe them.
  const PackedWeights* packed_rhs = nullptr;
  CallOptions options{};
};

CADRE_API Status gmm(Context& context, const GmmArgs& args);

/// Bytes of device workspace this call needs: what `options.workspace` must hold.
CADRE_API Status gmm_workspace_size(Context& context, const GmmArgs& args, size_t* size_bytes);

}  // namespace cadre
