// GroupedLinear: a linear layer for each group, y[r] = x[r] @ weight_g^T + scales[r] * bias_g, with
// its backward pass. Composed of gmm, tgmm and bias_grad; owns no tensor, only views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "cadre/context.h"
#include "cadre/export.h"
#include "cadre/gmm.h"
#include "cadre/tensor.h"
#include "cadre/tgmm.h"

namespace cadre {

struct GroupedLinearOptions {
  /// backward() leaves the weight gradient to a later backward_dw().
  bool delay_wgrad = false;
  /// The weight gradient goes to `main_grad`, which every backward() must then give.
  bool accumulate_into_main_grad = false;
};

/// The parameters. Their memory must live as long as calls use it, as must arrays of pointers.
struct GroupedLinearParameters {
  GroupedTensor weight{};  ///< one tensor [g, n, k], or a list of [n, k]
  GroupedTensor bias{};    ///< [g, n] (GroupedTensor::vectors), a list of [n], or not given
};

/// What backward() needs of a forward(): views alone. The tensors behind them, and a host array of
/// splits, must live until backward() has run, or backward_dw() where the gradient is delayed.
struct GroupedLinearSaved {
  TensorView x{};
  GroupSizes splits{};
  GroupOffset group_offset = 0;
  TensorView scales{};
};

struct GroupedLinearForwardArgs {
  TensorView x{};       ///< [m, k]
  GroupSizes splits{};  ///< rows of each group, at least g entries, their sum at most m
  TensorView scales{};  ///< [m]: scales the bias of each row; needs a bias; default 1
  TensorView y{};       ///< [m, n], written
  Tail tail = Tail::kZero;
  GroupOffset group_offset = 0;  ///< index of the first local group among splits
  CallOptions options{};
};

/// One buffer for the gradients of all groups, of any shape that [g, n, k] is a view of, or a list
/// with one [n, k] buffer for each group.
struct CADRE_API MainGrad {
  TensorView tensor{};
  GroupedTensor list{};

  MainGrad() = default;
  MainGrad(const TensorView& one) : tensor(one) {}     // NOLINT(google-explicit-constructor)
  MainGrad(const GroupedTensor& each) : list(each) {}  // NOLINT(google-explicit-constructor)

  bool given() const { return tensor.given() || list.given(); }
};

/// Every gradient is optional: what is not given is not computed. Rows that no local group covers
/// are zero in dx and dscales, and dy and x are never read there.
struct GroupedLinearBackwardArgs {
  TensorView dy{};          ///< [m, n]
  TensorView dx{};          ///< [m, k]
  GroupedTensor dweight{};  ///< [g, n, k], or a list of [n, k]; not with accumulate_into_main_grad
  /// By group: 0 replaces dweight, 1 adds to what it holds.
  GroupScalars dweight_beta = 0.0;
  MainGrad main_grad{};  ///< with accumulate_into_main_grad alone
  /// By group: 1 adds to main_grad, 0 overwrites it (each parameter may differ).
  GroupScalars main_grad_beta = 1.0;
  GroupedTensor dbias{};  ///< [g, n] (GroupedTensor::vectors) or a list of [n]; needs a bias
  bool accumulate_dbias = false;  ///< add to dbias instead of replacing it
  TensorView dscales{};           ///< [m]; needs scales
  CallOptions options{};
};

/// Use one object from one thread at a time. Every combination of options and arguments either
/// works or is an error before anything is written.
class CADRE_API GroupedLinear {
 public:
  explicit GroupedLinear(const GroupedLinearParameters& parameters,
                         const GroupedLinearOptions& options = {});

  /// `saved` may be null where no backward follows.
  Status forward(Context& context, const GroupedLinearForwardArgs& args, GroupedLinearSaved* saved);

  /// dx, dbias and dscales at once; the weight gradient too, unless it is delayed.
  Status backward(Context& context, const GroupedLinearSaved& saved,
                  const GroupedLinearBackwardArgs& args);

  /// Computes the oldest weight gradient that backward() left, and forgets its views, whatever the
  /// outcome. Ok and without effect when there is none. `options` replace those of backward().
  Status backward_dw(Context& context, const CallOptions& options = {});

  /// Weight gradients that wait for backward_dw().
  size_t pending_wgrads() const { return pending_.size(); }

  /// Bytes of `options.workspace` that the call needs: the largest need of the ops it consists of.
  Status forward_workspace_size(Context& context, const GroupedLinearForwardArgs& args,
                                size_t* size_bytes) const;
  /// Covers the later backward_dw() as well.
  Status backward_workspace_size(Context& context, const GroupedLinearSaved& saved,
                                 const GroupedLinearBackwardArgs& args, size_t* size_bytes) const;

 private:
  GroupedLinearParameters parameters_;
  GroupedLinearOptions options_;
  std::deque<TgmmArgs> pending_;
};

}  // namespace cadre
