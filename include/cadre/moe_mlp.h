// MoeMlp: the experts of a mixture-of-experts layer, from tokens to tokens, with its backward pass.
// Composed of the ops around it; owns no tensor, only views.
//
//   rows = x by source_row;  preact = rows @ w13 + bias13;  y = activation(preact) @ w2 + bias2
//   out[t] = sum over j of weights[t, j] * y[slot_row[t, j]] + shared[t] + residual[t]
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "cadre/activation.h"
#include "cadre/context.h"
#include "cadre/export.h"
#include "cadre/tensor.h"

namespace cadre {

class PackedWeights;

/// The parameters of the experts that are here. Their memory must live as long as calls use it, as
/// must arrays of pointers. h is the width of a token, i that of the activation's result; where the
/// activation has no gate read i for 2i.
struct MoeMlpWeights {
  GroupedTensor w13{};      ///< [g, 2i, h], or [g, h, 2i] if transposed; stacked or a list
  GroupedTensor w2{};       ///< [g, h, i], or [g, i, h] if transposed
  GroupedTensor bias13{};   ///< [g, 2i] (GroupedTensor::vectors), or not given
  GroupedTensor bias2{};    ///< [g, h], or not given
  bool transposed = false;  ///< the weights lie [in, out] (gpt-oss) instead of [out, in]
  /// Both made by pack_weights, for forward() on a CPU.
  const PackedWeights* packed_w13 = nullptr;
  const PackedWeights* packed_w2 = nullptr;
};

struct MoeMlpOptions {
  Activation activation{.kind = ActivationKind::kSwiglu};
  /// Router weights scale a token on its way in instead of its results.
  bool weights_on_input = false;
  /// backward() leaves the gradients of w13 and w2 to a later backward_dw().
  bool delay_wgrad = false;
};

/// Where tokens go, as route() gives it. Without source_row and slot_row the rows of x are sorted
/// by expert already, and row r of the result is that of row r: no weights, shared or residual
/// then.
struct MoeMlpRouting {
  GroupSizes group_sizes{};  ///< rows of every expert, those of other shards included
  TensorView source_row{};   ///< [m] of i32 or i64: the token of each row; -1: none
  TensorView slot_row{};     ///< [t, top_k] of i32 or i64: the row of each slot; -1: dropped
  TensorView weights{};      ///< [t, top_k]; default 1
  /// Index of w13[0] among group_sizes. Slots of experts that other shards hold add nothing.
  GroupOffset group_offset = 0;

  bool sorted() const { return !source_row.given(); }
};

struct MoeMlpForwardArgs {
  TensorView x{};  ///< [t, h]
  MoeMlpRouting routing{};
  TensorView shared{};    ///< [t, h]: added to the result, or not given
  TensorView residual{};  ///< [t, h]: added to the result, or not given
  TensorView out{};       ///< [t, h], written
  /// [m, 2i] of x's type, written: what backward() needs. Not given in inference, where kernels
  /// that activate in their epilogue never write it anywhere.
  TensorView preact{};
  CallOptions options{};
};

/// What backward() needs of a forward(): views alone. The tensors behind them must live until
/// backward() has run, or backward_dw() where the gradient is delayed.
struct MoeMlpSaved {
  TensorView x{};
  TensorView preact{};
  MoeMlpRouting routing{};
};

/// Every gradient is optional: what is not given is not computed. Those of shared and residual are
/// dout itself.
struct MoeMlpBackwardArgs {
  TensorView dout{};      ///< [t, h]
  TensorView dx{};        ///< [t, h]
  TensorView dweights{};  ///< [t, top_k]: of the router weights; needs them
  GroupedTensor dw13{};   ///< the shape of w13, of any floating-point type; stacked or a list
  GroupedTensor dw2{};    ///< the shape of w2
  /// By group: 0 replaces dw13 and dw2, 1 adds to what they hold (a main_grad).
  GroupScalars dw_beta = 0.0;
  GroupedTensor dbias13{};        ///< [g, 2i]; needs bias13
  GroupedTensor dbias2{};         ///< [g, h]; needs bias2
  bool accumulate_dbias = false;  ///< add to dbias13 and dbias2 instead of replacing them
  /// Written, and read by a delayed backward_dw(), which needs d_preact for dw13 and activated for
  /// dw2. Else parts of the workspace may serve. d_preact may be saved.preact itself, which is then
  /// overwritten.
  TensorView d_preact{};   ///< [m, 2i]
  TensorView activated{};  ///< [m, i]
  CallOptions options{};
};

/// Use one object from one thread at a time. Every combination of options and arguments either
/// works or is an error before anything is written. All work goes to one stream, nothing waits for
/// it, and every call can be captured.
///
/// Tensors between the ops lie in `options.workspace`: on a GPU it must be given, on a CPU a buffer
/// of the calling thread takes its place.
class CADRE_API MoeMlp {
 public:
  explicit MoeMlp(const MoeMlpWeights& weights, const MoeMlpOptions& options = {});

  /// `saved` may be null where no backward follows.
  Status forward(Context& context, const MoeMlpForwardArgs& args,
                 MoeMlpSaved* saved = nullptr) const;

  /// Everything that is asked for, but the gradients of w13 and w2 where they are delayed.
  Status backward(Context& context, const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args);

  /// Computes the oldest weight gradients that backward() left, and forgets their views, whatever
  /// the outcome. Ok and without effect when there are none. `options` replace those of backward().
  Status backward_dw(Context& context, const CallOptions& options = {});

  /// The weight gradients that a delayed backward() of the same arguments leaves: backward_dw() for
  /// callers that keep the arguments themselves.
  Status weight_gradients(Context& context, const MoeMlpSaved& saved,
                          const MoeMlpBackwardArgs& args) const;

  /// Calls that wait for backward_dw().
  size_t pending_wgrads() const { return pending_.size(); }

  /// Bytes of `options.workspace` that the call needs.
  Status forward_workspace_size(Context& context, const MoeMlpForwardArgs& args,
                                size_t* size_bytes) const;
  /// Covers the later backward_dw() as well.
  Status backward_workspace_size(Context& context, const MoeMlpSaved& saved,
                                 const MoeMlpBackwardArgs& args, size_t* size_bytes) const;

 private:
  struct Pending {
    MoeMlpSaved saved;
    MoeMlpBackwardArgs args;
  };

  MoeMlpWeights weights_;
  MoeMlpOptions options_;
  std::deque<Pending> pending_;
};

}  // namespace cadre
