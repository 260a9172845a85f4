// combine: the weighted sum of a token's rows, and its gradients.
#pragma once

#include "cadre/context.h"
#include "cadre/tensor.h"

namespace cadre {

/// out[t] = sum over j of weights[t, j] * y[slot_row[t, j]], then + shared[t], then + residual[t].
/// Summed in f32 (f64 where an operand is f64), j ascending, and rounded once: a token's bits
/// depend on its own rows alone. A slot_row of -1 adds nothing and its row and weight are not read.
/// Any other index outside [0, m) is a fault and counts as -1.
struct CombineArgs {
  TensorView y{};         ///< [m, h]
  TensorView slot_row{};  ///< [t, top_k] of i32 or i64
  TensorView weights{};   ///< [t, top_k]; default 1
  TensorView shared{};    ///< [t, h], or not given
  TensorView residual{};  ///< [t, h], or not given
  TensorView out{};       ///< [t, h]
  CallOptions options{};
};

CADRE_API Status combine(Context& context, const CombineArgs& args);
CADRE_API Status combine_workspace_size(Context& context, const CombineArgs& args,
                                        size_t* size_bytes);

/// dy[slot_row[t, j]] = weights[t, j] * dout[t], zero in rows that no slot names (source_row -1);
/// dweights[t, j] = dot(dout[t], y[slot_row[t, j]]), zero where slot_row is -1. The dot product
/// runs in an order that depends on h alone. Without a dout, ones stand in for it: dy is then the
/// weight of each row, dweights the sum of each slot's row of y.
struct CombineGradArgs {
  TensorView dout{};        ///< [t, h]; default 1
  TensorView slot_row{};    ///< [t, top_k], as route gives it
  TensorView source_row{};  ///< [m], as route gives it; needed for dy
  TensorView weights{};     ///< [t, top_k]; default 1
  TensorView y{};           ///< [m, h]; needed for dweights
  TensorView dy{};          ///< out: [m, h], or not given
  TensorView dweights{};    ///< out: [t, top_k], or not given
  CallOptions options{};
};

CADRE_API Status combine_grad(Context& context, const CombineGradArgs& args);
CADRE_API Status combine_grad_workspace_size(Context& context, const CombineGradArgs& args,
                                             size_t* size_bytes);

}  // namespace cadre
