// A mixture-of-experts layer on random data, as a list of grouped products: router, tokens sorted
// by expert, w13, SwiGLU, w2 weighted by the router; then the gradients of inputs, weights and
// biases.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "bench/shapes/shapes.h"
#include "cadre/bias_grad.h"
#include "cadre/gmm.h"
#include "cadre/tgmm.h"
#include "owned_tensor.h"

namespace cadre::cli {

using OpArgs = std::variant<GmmArgs, TgmmArgs, BiasGradArgs>;

/// One op of the layer, with its tensors on the device and their copies on the host.
struct LayerStep {
  std::string name;
  OpArgs device;
  OpArgs host;
  OwnedTensor* out;
  double flops;
  std::function<Status()> then;  ///< element-wise work that follows, on the host; may be empty
};

class MoeLayer {
 public:
  /// Allocates and fills everything; uncovered rows and outputs hold NaN.
  Status make(const shapes::LayerShape& shape, DType dtype, Device device);
  /// Chooses top_k experts for each token and sorts the tokens by expert.
  Status route(Context& context);
  /// In the order they must run.
  std::vector<LayerStep> steps();

  int64_t smallest_group() const { return smallest_group_; }
  int64_t largest_group() const { return largest_group_; }
  int64_t tail_rows() const;

 private:
  Status swiglu();
  Status swiglu_backward();
  GroupSizes group_sizes(Side side) const;
  OpArgs forward_w13(Side side) const;
  OpArgs forward_w2(Side side) const;
  OpArgs dgrad_w2(Side side) const;
  OpArgs dgrad_w13(Side side) const;
  OpArgs wgrad_w2(Side side) const;
  OpArgs wgrad_w13(Side side) const;
  OpArgs bias_grad_w2(Side side) const;
  OpArgs bias_grad_w13(Side side) const;

  shapes::LayerShape shape_{};
  Device device_{};
  int64_t smallest_group_ = 0;
  int64_t largest_group_ = 0;
  OwnedTensor tokens_, router_,
      logits_;                       // [tokens, hidden], [1, hidden, experts], [tokens, experts]
  OwnedTensor w13_, w2_, b13_, b2_;  // [g, 2i, h], [g, h, i], [g, 2i], [g, h]
  OwnedTensor sizes_, gates_;        // [g], [rows]
  OwnedTensor x_, h_, act_, y_;      // [rows, hidden], [rows, 2i], [rows, i], [rows, hidden]
  OwnedTensor dy_, dact_, dh_, dx_;  // gradients of y, act, h, x
  OwnedTensor dw13_, dw2_, db13_, db2_;  // f32, the weights' "main_grad": added to
};

}  // namespace cadre::cli
