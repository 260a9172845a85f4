// A MoeMlp on random data with the tensors of its calls, for `cadre bench`: route and forward, or
// these and the backward pass, and the check of what they give.
#pragma once

#include <vector>

#include "bench/shapes/shapes.h"
#include "cadre/moe_mlp.h"
#include "owned_tensor.h"
#include "sampled_check.h"

namespace cadre::cli {

class ExpertLayer {
 public:
  /// Allocates and fills everything. `trains`: with the gradients that step() writes.
  Status make(const shapes::LayerShape& shape, DType dtype, Device device, bool trains,
              Pages pages = Pages::kAny, void* stream = nullptr);
  /// Finds the workspace that the calls need.
  Status prepare(Context& context);

  /// route and forward, as inference has them.
  Status forward(Context& context);
  /// route, forward and backward with every gradient.
  Status step(Context& context);
  Status run(Context& context) { return trains_ ? step(context) : forward(context); }

  /// Poisons what run() writes, runs it, and compares sampled elements with sums in double, each
  /// from the tensor that the layer itself has written before it.
  Status check(Context& context, CheckResult* result);

 private:
  struct Row {
    int64_t row, token, slot, expert;
  };
  MoeMlp layer() const;
  CallOptions options() const;
  Status wait() const;
  Status route_tokens(Context& context);
  Status pass(Context& context, bool keeps, MoeMlpSaved* saved = nullptr);
  MoeMlpRouting routing() const;
  MoeMlpForwardArgs forward_args(bool keeps) const;
  MoeMlpBackwardArgs backward_args() const;
  std::vector<Row> rows_of_token(int64_t token) const;
  std::vector<Row> rows_of_expert(int64_t expert) const;
  double activated(int64_t row, int64_t col) const;
  double unit() const;
  void check_forward(CheckResult* result) const;
  void check_inner(const Row& at, int64_t col, CheckResult* result) const;
  void check_dx(int64_t token, int64_t col, CheckResult* result) const;
  void check_dweights(int64_t token, CheckResult* result) const;
  void check_weight_gradients(int64_t expert, CheckResult* result) const;

  shapes::LayerShape shape_{};
  DType dtype_ = DType::kF32;
  DType sum_ = DType::kF32;
  Device device_{};
  void* stream_ = nullptr;
  bool trains_ = false;
  OwnedTensor x_, ids_, weights_, w13_, w2_;  // [t, h], [t, k], [t, k], [g, 2i, h], [g, h, i]
  OwnedTensor sizes_, source_, slots_;        // [g], [m], [t, k]
  OwnedTensor out_;                           // [t, h]
  OwnedTensor preact_, dout_, dx_, dweights_, dw13_, dw2_, d_preact_, activated_;
  OwnedTensor workspace_;
};

}  // namespace cadre::cli
