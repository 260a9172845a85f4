// A mixture-of-experts layer and its training step: select_experts, route, MoeMlp forward and
// backward. The gradient is checked against differences of the loss.
#include <cadre/cadre.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

using cadre::DType, cadre::TensorView;

constexpr int64_t kTokens = 10, kExperts = 4, kTopK = 2, kHidden = 12, kInner = 7;
constexpr int64_t kRows = kTokens * kTopK;

std::vector<double> random_values(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, 0.5);
  std::vector<double> values(static_cast<size_t>(count));
  for (double& value : values) value = normal(engine);
  return values;
}

// f64 here, so that the differences mean something; f32, bf16 and f16 are the same code.
TensorView f64(const std::vector<double>& data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data.data(), DType::kF64, shape);
}
TensorView i32(const std::vector<int32_t>& data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data.data(), DType::kI32, shape);
}

bool ok(const cadre::Status& status) {
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  return status.ok();
}

struct Layer {
  std::vector<double> x = random_values(kTokens * kHidden, 1);
  std::vector<double> w13 = random_values(kExperts * 2 * kInner * kHidden, 2);
  std::vector<double> w2 = random_values(kExperts * kHidden * kInner, 3);
  std::vector<double> logits = random_values(kTokens * kExperts, 4);
  std::vector<double> dout = random_values(kTokens * kHidden, 5);  // the loss is dot(dout, out)
  std::vector<double> weights = std::vector<double>(kRows);
  std::vector<int32_t> ids = std::vector<int32_t>(kRows), sizes = std::vector<int32_t>(kExperts),
                       source = std::vector<int32_t>(kRows), slot = std::vector<int32_t>(kRows);
  std::vector<double> out = std::vector<double>(kTokens * kHidden);
  std::vector<double> preact = std::vector<double>(kRows * 2 * kInner);
  cadre::Context context;
  cadre::MoeMlpSaved saved;

  cadre::MoeMlp mlp() const {
    return cadre::MoeMlp({.w13 = f64(w13, {kExperts, 2 * kInner, kHidden}),
                          .w2 = f64(w2, {kExperts, kHidden, kInner})},
                         {.activation = {.kind = cadre::ActivationKind::kSwiglu}});
  }

  bool choose_experts() {
    return ok(cadre::select_experts(context, {.logits = f64(logits, {kTokens, kExperts}),
                                              .expert_ids = i32(ids, {kTokens, kTopK}),
                                              .weights = f64(weights, {kTokens, kTopK})})) &&
           ok(cadre::route(context, {.expert_ids = i32(ids, {kTokens, kTopK}),
                                     .group_sizes = i32(sizes, {kExperts}),
                                     .source_row = i32(source, {kRows}),
                                     .slot_row = i32(slot, {kTokens, kTopK})}));
  }

  bool forward() {
    return ok(mlp().forward(context,
                            {.x = f64(x, {kTokens, kHidden}),
                             .routing = {.group_sizes = {sizes.data(), DType::kI32, kExperts},
                                         .source_row = i32(source, {kRows}),
                                         .slot_row = i32(slot, {kTokens, kTopK}),
                                         .weights = f64(weights, {kTokens, kTopK})},
                             .residual = f64(x, {kTokens, kHidden}),
                             .out = f64(out, {kTokens, kHidden}),
                             .preact = f64(preact, {kRows, 2 * kInner})},
                            &saved));
  }

  double loss() {
    double sum = 0;
    if (!forward()) return std::nan("");
    for (size_t i = 0; i < out.size(); ++i) sum += dout[i] * out[i];
    return sum;
  }
};

/// The largest difference between a gradient and that of the loss, over a few of its elements.
double worst_difference(Layer& layer, std::vector<double>& parameter,
                        const std::vector<double>& gradient) {
  double worst = 0;
  for (size_t i = 0; i < parameter.size(); i += 13) {
    const double kept = parameter[i];
    parameter[i] = kept + 1e-5;
    const double above = layer.loss();
    parameter[i] = kept - 1e-5;
    const double below = layer.loss();
    parameter[i] = kept;
    worst = std::fmax(worst, std::fabs((above - below) / 2e-5 - gradient[i]));
  }
  return worst;
}

}  // namespace

int main() {
  Layer layer;
  if (!layer.choose_experts() || !layer.forward()) return 1;
  std::vector<double> dx(layer.x.size()), dw13(layer.w13.size()), dw2(layer.w2.size()),
      dweights(layer.weights.size());
  cadre::MoeMlp mlp = layer.mlp();
  if (!ok(mlp.backward(layer.context, layer.saved,
                       {.dout = f64(layer.dout, {kTokens, kHidden}),
                        .dx = f64(dx, {kTokens, kHidden}),
                        .dweights = f64(dweights, {kTokens, kTopK}),
                        .dw13 = f64(dw13, {kExperts, 2 * kInner, kHidden}),
                        .dw2 = f64(dw2, {kExperts, kHidden, kInner})}))) {
    return 1;
  }
  for (size_t i = 0; i < dx.size(); ++i) dx[i] += layer.dout[i];  // the residual's
  double worst = worst_difference(layer, layer.x, dx);
  worst = std::fmax(worst, worst_difference(layer, layer.w13, dw13));
  worst = std::fmax(worst, worst_difference(layer, layer.w2, dw2));
  worst = std::fmax(worst, worst_difference(layer, layer.weights, dweights));
  std::printf("rows of each expert: %d %d %d %d; gradients are within %g of differences\n",
              layer.sizes[0], layer.sizes[1], layer.sizes[2], layer.sizes[3], worst);
  return worst < 1e-7 ? 0 : 1;
}
