// A mixture-of-experts layer from logits to output, op by op: select_experts, route, permute, two
// products around an activation, combine. 09_moe_mlp.cc runs the experts as one call.
#include <cadre/cadre.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace {

using cadre::DType, cadre::TensorView;

constexpr int64_t kTokens = 6, kExperts = 4, kTopK = 2, kHidden = 8, kInner = 5;
constexpr int64_t kRows = kTokens * kTopK;

std::vector<float> random_values(int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

TensorView f32(const std::vector<float>& data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data.data(), DType::kF32, shape);
}
TensorView i32(const std::vector<int32_t>& data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data.data(), DType::kI32, shape);
}

float silu(float x) { return x / (1.0f + std::exp(-x)); }

/// What expert `e` makes of token `t`, in plain loops.
std::vector<float> expert_of_token(const std::vector<float>& x, const std::vector<float>& w13,
                                   const std::vector<float>& w2, int64_t e, int64_t t) {
  std::vector<float> pre(2 * kInner, 0.0f), out(kHidden, 0.0f);
  for (int64_t i = 0; i < 2 * kInner; ++i) {
    for (int64_t h = 0; h < kHidden; ++h) {
      pre[i] += x[t * kHidden + h] * w13[(e * kHidden + h) * 2 * kInner + i];
    }
  }
  for (int64_t i = 0; i < kInner; ++i) {
    const float inner = silu(pre[i]) * pre[kInner + i];
    for (int64_t h = 0; h < kHidden; ++h) out[h] += inner * w2[(e * kInner + i) * kHidden + h];
  }
  return out;
}

}  // namespace

int main() {
  const std::vector<float> x = random_values(kTokens * kHidden, 1);
  const std::vector<float> logits = random_values(kTokens * kExperts, 2);
  const std::vector<float> w13 = random_values(kExperts * kHidden * 2 * kInner, 3);  // gate, up
  const std::vector<float> w2 = random_values(kExperts * kInner * kHidden, 4);
  std::vector<int32_t> ids(kRows), sizes(kExperts), source(kRows), slot(kRows);
  std::vector<float> weights(kRows), rows(kRows * kHidden), pre(kRows * 2 * kInner);
  std::vector<float> inner(kRows * kInner), y(kRows * kHidden), out(kTokens * kHidden);

  cadre::Context context;
  const auto run = [](const cadre::Status& status) {
    if (!status.ok()) std::printf("%s\n", status.message().c_str());
    return status.ok();
  };
  const cadre::GroupSizes group_sizes(sizes.data(), DType::kI32, kExperts);
  const TensorView slots = i32(slot, {kTokens, kTopK});
  const TensorView token_of_row = i32(source, {kRows});

  // The router: the two best experts of every token, weights that add up to 1.
  if (!run(cadre::select_experts(context, {.logits = f32(logits, {kTokens, kExperts}),
                                           .expert_ids = i32(ids, {kTokens, kTopK}),
                                           .weights = f32(weights, {kTokens, kTopK})})) ||
      // Rows sorted by expert: how many each expert has, whose token each row is, where each slot
      // went.
      !run(cadre::route(context, {.expert_ids = i32(ids, {kTokens, kTopK}),
                                  .group_sizes = i32(sizes, {kExperts}),
                                  .source_row = token_of_row,
                                  .slot_row = slots})) ||
      !run(cadre::permute(context, {.x = f32(x, {kTokens, kHidden}),
                                    .source_row = token_of_row,
                                    .out = f32(rows, {kRows, kHidden})})) ||
      !run(cadre::gmm(context, {.lhs = f32(rows, {kRows, kHidden}),
                                .rhs = f32(w13, {kExperts, kHidden, 2 * kInner}),
                                .group_sizes = group_sizes,
                                .out = f32(pre, {kRows, 2 * kInner})})) ||
      // silu(gate) * up; gmm can do it in its epilogue, too.
      !run(cadre::activate(context, {.preact = f32(pre, {kRows, 2 * kInner}),
                                     .activation = {.kind = cadre::ActivationKind::kSwiglu},
                                     .out = f32(inner, {kRows, kInner})})) ||
      !run(cadre::gmm(context, {.lhs = f32(inner, {kRows, kInner}),
                                .rhs = f32(w2, {kExperts, kInner, kHidden}),
                                .group_sizes = group_sizes,
                                .out = f32(y, {kRows, kHidden})})) ||
      // Back to token order: the weighted sum of each token's rows.
      !run(cadre::combine(context, {.y = f32(y, {kRows, kHidden}),
                                    .slot_row = slots,
                                    .weights = f32(weights, {kTokens, kTopK}),
                                    .out = f32(out, {kTokens, kHidden})}))) {
    return 1;
  }

  float worst = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    std::vector<float> expected(kHidden, 0.0f);
    for (int64_t j = 0; j < kTopK; ++j) {
      const std::vector<float> row = expert_of_token(x, w13, w2, ids[t * kTopK + j], t);
      for (int64_t h = 0; h < kHidden; ++h) expected[h] += weights[t * kTopK + j] * row[h];
    }
    for (int64_t h = 0; h < kHidden; ++h) {
      worst = std::fmax(worst, std::fabs(out[t * kHidden + h] - expected[h]));
    }
  }
  std::printf("rows of each expert: %d %d %d %d; largest difference from plain loops: %g\n",
              sizes[0], sizes[1], sizes[2], sizes[3], static_cast<double>(worst));
  return worst < 1e-4f ? 0 : 1;
}
