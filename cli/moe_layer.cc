// The layer's tensors, its router and the arguments of each of its ops.
#include "moe_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cpu/threads.h"

namespace cadre::cli {
namespace {

/// Rows behind the last group, as in a buffer of fixed capacity. Their inputs hold NaN.
constexpr int64_t kTailRows = 13;

double sigmoid(double value) { return 1.0 / (1.0 + std::exp(-value)); }

Status first_failure(std::initializer_list<Status> statuses) {
  for (const Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace

int64_t MoeLayer::tail_rows() const { return kTailRows; }

Status MoeLayer::make(const shapes::LayerShape& shape, DType dtype, Device device) {
  shape_ = shape;
  device_ = device;
  const int64_t g = shape.experts;
  const int64_t h = shape.hidden;
  const int64_t i = shape.intermediate;
  const int64_t rows = shape.rows() + kTailRows;
  Status status = first_failure({tokens_.make(dtype, {shape.tokens, h}, device),
                                 router_.make(dtype, {1, h, g}, device),
                                 logits_.make(DType::kF32, {shape.tokens, g}, device),
                                 w13_.make(dtype, {g, 2 * i, h}, device),
                                 w2_.make(dtype, {g, h, i}, device),
                                 b13_.make(dtype, {g, 2 * i}, device),
                                 b2_.make(dtype, {g, h}, device),
                                 sizes_.make(DType::kI32, {g}, device),
                                 gates_.make(DType::kF32, {rows}, device),
                                 x_.make(dtype, {rows, h}, device),
                                 h_.make(dtype, {rows, 2 * i}, device),
                                 act_.make(dtype, {rows, i}, device),
                                 y_.make(dtype, {rows, h}, device),
                                 dy_.make(dtype, {rows, h}, device),
                                 dact_.make(dtype, {rows, i}, device),
                                 dh_.make(dtype, {rows, 2 * i}, device),
                                 dx_.make(dtype, {rows, h}, device),
                                 dw13_.make(DType::kF32, {g, 2 * i, h}, device),
                                 dw2_.make(DType::kF32, {g, h, i}, device),
                                 db13_.make(DType::kF32, {g, 2 * i}, device),
                                 db2_.make(DType::kF32, {g, h}, device)});
  if (!status.ok()) return status;
  // Weights of variance 1 / fan-in keep activations of order one.
  const auto weight_scale = [](int64_t fan_in) {
    return std::sqrt(3.0 / static_cast<double>(fan_in));
  };
  tokens_.fill_random(1, std::sqrt(3.0));
  router_.fill_random(2, weight_scale(h));
  w13_.fill_random(3, weight_scale(h));
  w2_.fill_random(4, weight_scale(i));
  b13_.fill_random(5, 0.5);
  b2_.fill_random(6, 0.5);
  dy_.fill_random(7, 1.0);
  dw13_.fill_random(8, 1.0);
  dw2_.fill_random(9, 1.0);
  for (OwnedTensor* out : {&logits_, &h_, &act_, &y_, &dact_, &dh_, &dx_, &db13_, &db2_}) {
    out->fill_nan();
  }
  for (OwnedTensor* tensor : {&tokens_, &router_, &logits_, &w13_, &w2_, &b13_, &b2_, &h_, &act_,
                              &y_, &dact_, &dh_, &dx_, &dw13_, &dw2_, &db13_, &db2_}) {
    if (Status uploaded = tensor->upload(); !uploaded.ok()) return uploaded;
  }
  return {};
}

Status MoeLayer::route(Context& context) {
  const int64_t tokens = shape_.tokens;
  const int64_t experts = shape_.experts;
  // A plain product is a grouped one with a single group.
  const auto one_group = static_cast<int32_t>(tokens);
  Status status = gmm(context, {.lhs = tokens_.view(Side::kDevice),
                                .rhs = router_.view(Side::kDevice),
                                .group_sizes = {&one_group, DType::kI32, 1},
                                .out = logits_.view(Side::kDevice)});
  if (!status.ok()) return status;
  if (status = logits_.download(); !status.ok()) return status;

  struct Choice {
    int64_t token;
    int64_t expert;
    double gate;
  };
  std::vector<Choice> choices;
  std::vector<int64_t> order(static_cast<size_t>(experts));
  for (int64_t token = 0; token < tokens; ++token) {
    const auto logit = [&](int64_t expert) { return logits_.get(token * experts + expert); };
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + shape_.top_k, order.end(),
                      [&](int64_t a, int64_t b) { return logit(a) > logit(b); });
    double sum = 0;
    for (int64_t i = 0; i < shape_.top_k; ++i) {
      sum += std::exp(logit(order[static_cast<size_t>(i)]) - logit(order[0]));
    }
    for (int64_t i = 0; i < shape_.top_k; ++i) {
      const int64_t expert = order[static_cast<size_t>(i)];
      choices.push_back({token, expert, std::exp(logit(expert) - logit(order[0])) / sum});
    }
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.expert < b.expert; });

  std::vector<int64_t> sizes(static_cast<size_t>(experts));
  const int64_t hidden = shape_.hidden;
  x_.fill_nan();
  gates_.fill_nan();
  for (int64_t row = 0; row < shape_.rows(); ++row) {
    const Choice& choice = choices[static_cast<size_t>(row)];
    ++sizes[static_cast<size_t>(choice.expert)];
    gates_.set(row, choice.gate);
    for (int64_t i = 0; i < hidden; ++i) {
      x_.set(row * hidden + i, tokens_.get(choice.token * hidden + i));
      dy_.set(row * hidden + i, choice.gate * dy_.get(row * hidden + i));
    }
  }
  dy_.fill_nan(shape_.rows() * hidden);
  for (int64_t i = 0; i < experts; ++i) {
    sizes_.set(i, static_cast<double>(sizes[static_cast<size_t>(i)]));
  }
  const auto [smallest, largest] = std::minmax_element(sizes.begin(), sizes.end());
  smallest_group_ = *smallest;
  largest_group_ = *largest;
  return first_failure({x_.upload(), gates_.upload(), dy_.upload(), sizes_.upload()});
}

/// act = silu(first half of h) * second half of h.
Status MoeLayer::swiglu() {
  const int64_t i = shape_.intermediate;
  const int64_t rows = shape_.rows() + kTailRows;
  cpu::for_each_index(cpu::default_thread_count(), rows, [&](int64_t row) {
    for (int64_t col = 0; col < i; ++col) {
      const double gate = h_.get(row * 2 * i + col);
      act_.set(row * i + col, gate * sigmoid(gate) * h_.get(row * 2 * i + i + col));
    }
  });
  return act_.upload();
}

Status MoeLayer::swiglu_backward() {
  const int64_t i = shape_.intermediate;
  const int64_t rows = shape_.rows() + kTailRows;
  cpu::for_each_index(cpu::default_thread_count(), rows, [&](int64_t row) {
    for (int64_t col = 0; col < i; ++col) {
      const double gate = h_.get(row * 2 * i + col);
      const double up = h_.get(row * 2 * i + i + col);
      const double grad = dact_.get(row * i + col);
      const double s = sigmoid(gate);
      dh_.set(row * 2 * i + col, grad * up * s * (1 + gate * (1 - s)));
      dh_.set(row * 2 * i + i + col, grad * gate * s);
    }
  });
  return dh_.upload();
}

GroupSizes MoeLayer::group_sizes(Side side) const {
  const TensorView view = sizes_.view(side);
  return {view.data, view.dtype, view.shape[0], view.device};
}

OpArgs MoeLayer::forward_w13(Side side) const {
  return GmmArgs{.lhs = x_.view(side),
                 .rhs = w13_.view(side),
                 .group_sizes = group_sizes(side),
                 .out = h_.view(side),
                 .transpose_rhs = true,
                 .bias = GroupedTensor::vectors(b13_.view(side))};
}

OpArgs MoeLayer::forward_w2(Side side) const {
  return GmmArgs{.lhs = act_.view(side),
                 .rhs = w2_.view(side),
                 .group_sizes = group_sizes(side),
                 .out = y_.view(side),
                 .transpose_rhs = true,
                 .bias = GroupedTensor::vectors(b2_.view(side)),
                 .row_scale = gates_.view(side)};
}

OpArgs MoeLayer::dgrad_w2(Side side) const {
  return GmmArgs{.lhs = dy_.view(side),
                 .rhs = w2_.view(side),
                 .group_sizes = group_sizes(side),
                 .out = dact_.view(side)};
}

OpArgs MoeLayer::dgrad_w13(Side side) const {
  return GmmArgs{.lhs = dh_.view(side),
                 .rhs = w13_.view(side),
                 .group_sizes = group_sizes(side),
                 .out = dx_.view(side)};
}

OpArgs MoeLayer::wgrad_w2(Side side) const {
  return TgmmArgs{.lhs = dy_.view(side),
                  .rhs = act_.view(side),
                  .group_sizes = group_sizes(side),
                  .out = dw2_.view(side),
                  .accumulate = true};
}

OpArgs MoeLayer::wgrad_w13(Side side) const {
  return TgmmArgs{.lhs = dh_.view(side),
                  .rhs = x_.view(side),
                  .group_sizes = group_sizes(side),
                  .out = dw13_.view(side),
                  .accumulate = true};
}

OpArgs MoeLayer::bias_grad_w2(Side side) const {
  return BiasGradArgs{.dy = dy_.view(side),
                      .group_sizes = group_sizes(side),
                      .dbias = GroupedTensor::vectors(db2_.view(side))};
}

OpArgs MoeLayer::bias_grad_w13(Side side) const {
  return BiasGradArgs{.dy = dh_.view(side),
                      .group_sizes = group_sizes(side),
                      .dbias = GroupedTensor::vectors(db13_.view(side))};
}

std::vector<LayerStep> MoeLayer::steps() {
  const auto rows = static_cast<double>(shape_.rows());
  const auto hidden = static_cast<double>(shape_.hidden);
  const auto inner = static_cast<double>(shape_.intermediate);
  const double w13_flops = 2 * rows * hidden * 2 * inner;
  const double w2_flops = 2 * rows * hidden * inner;
  using Make = OpArgs (MoeLayer::*)(Side) const;
  const auto step = [this](const char* name, Make make_args, OwnedTensor* out, double flops) {
    return LayerStep{
        name, (this->*make_args)(Side::kDevice), (this->*make_args)(Side::kHost), out, flops, {}};
  };
  std::vector<LayerStep> steps = {
      step("forward w13", &MoeLayer::forward_w13, &h_, w13_flops),
      step("forward w2", &MoeLayer::forward_w2, &y_, w2_flops),
      step("dgrad w2", &MoeLayer::dgrad_w2, &dact_, w2_flops),
      step("dgrad w13", &MoeLayer::dgrad_w13, &dx_, w13_flops),
      step("wgrad w2", &MoeLayer::wgrad_w2, &dw2_, w2_flops),
      step("wgrad w13", &MoeLayer::wgrad_w13, &dw13_, w13_flops),
      step("bias grad w2", &MoeLayer::bias_grad_w2, &db2_, rows * hidden),
      step("bias grad w13", &MoeLayer::bias_grad_w13, &db13_, rows * 2 * inner)};
  steps[0].then = [this] { return swiglu(); };
  steps[2].then = [this] { return swiglu_backward(); };
  return steps;
}

}  // namespace cadre::cli
