// MoeMlp on a device: no workspace but the caller's, graphs replayed with other routings, and
// routings that no router would make.
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kTokens = 70, kTopK = 4, kExperts = 6, kWidth = 72, kInner = 40;
constexpr int64_t kFull = 2 * kInner, kSlots = kTokens * kTopK;

/// A layer in bf16 with all of its results, and its workspace.
class MoeMlpGpu : public GpuBackendTest {
 protected:
  void SetUp() override {
    GpuBackendTest::SetUp();
    if (IsSkipped()) return;
    for (GpuArray* array : {&x, &w13, &w2, &weights, &dout}) array->fill_random(++seed_);
  }

  MoeMlpForwardArgs forward_args(cudaStream_t stream) {
    return {.x = x.view(),
            .routing = {.group_sizes = sizes.sizes(),
                        .source_row = source.view(),
                        .slot_row = slot.view(),
                        .weights = weights.view()},
            .out = out.view(),
            .preact = preact.view(),
            .options = {.stream = stream}};
  }
  MoeMlpBackwardArgs backward_args(cudaStream_t stream) {
    return {.dout = dout.view(),
            .dx = dx.view(),
            .dweights = dweights.view(),
            .dw13 = dw13.view(),
            .dw2 = dw2.view(),
            .options = {.stream = stream}};
  }

  /// route, forward and backward, with a workspace that lives as long as the test.
  std::function<Status()> layer_on(cudaStream_t stream) {
    MoeMlpForwardArgs forward = forward_args(stream);
    MoeMlpBackwardArgs backward = backward_args(stream);
    const MoeMlpSaved saved{.x = forward.x, .preact = forward.preact, .routing = forward.routing};
    size_t bytes = 0, more = 0;
    MoeMlp layer({.w13 = w13.view(), .w2 = w2.view()});
    EXPECT_TRUE(layer.forward_workspace_size(context, forward, &bytes).ok());
    EXPECT_TRUE(layer.backward_workspace_size(context, saved, backward, &more).ok());
    bytes = std::max(bytes, more);
    workspace_ =
        std::make_unique<GpuArray>(DType::kU8, std::vector<int64_t>{static_cast<int64_t>(bytes)});
    for (CallOptions* options : {&forward.options, &backward.options}) {
      options->workspace = workspace_->data();
      options->workspace_size_bytes = bytes;
    }
    return [=, this]() mutable {
      Status status = route(context, {.expert_ids = ids.view(),
                                      .group_sizes = sizes.view(),
                                      .source_row = source.view(),
                                      .slot_row = slot.view(),
                                      .options = {.stream = stream}});
      if (status.ok()) status = layer.forward(context, forward);
      return status.ok() ? layer.backward(context, saved, backward) : status;
    };
  }

  std::vector<GpuArray*> results() { return {&out, &preact, &dx, &dweights, &dw13, &dw2}; }
  void poison_results() {
    for (GpuArray* array : results()) array->upload();
  }

  /// The same layer by the reference, from the host copies, held against what the device wrote.
  void expect_reference(const std::vector<int64_t>& chosen) {
    Context reference = reference_context();
    GpuArray r_ids{DType::kI32, {kTokens, kTopK}}, r_sizes{DType::kI32, {kExperts}},
        r_source{DType::kI32, {kSlots}}, r_slot{DType::kI32, {kTokens, kTopK}};
    GpuArray r_out{DType::kBF16, {kTokens, kWidth}}, r_preact{DType::kBF16, {kSlots, kFull}},
        r_dx{DType::kBF16, {kTokens, kWidth}}, r_dweights{DType::kF32, {kTokens, kTopK}},
        r_dw13{DType::kF32, {kExperts, kFull, kWidth}},
        r_dw2{DType::kF32, {kExperts, kWidth, kInner}};
    r_ids.set(chosen);
    ASSERT_TRUE(route(reference, {.expert_ids = r_ids.host_view(),
                                  .group_sizes = r_sizes.host_view(),
                                  .source_row = r_source.host_view(),
                                  .slot_row = r_slot.host_view()})
                    .ok());
    MoeMlp layer({.w13 = w13.host_view(), .w2 = w2.host_view()});
    MoeMlpSaved saved;
    ASSERT_TRUE(layer
                    .forward(reference,
                             {.x = x.host_view(),
                              .routing = {.group_sizes = r_sizes.host_sizes(),
                                          .source_row = r_source.host_view(),
                                          .slot_row = r_slot.host_view(),
                                          .weights = weights.host_view()},
                              .out = r_out.host_view(),
                              .preact = r_preact.host_view()},
                             &saved)
                    .ok());
    ASSERT_TRUE(layer
                    .backward(reference, saved,
                              {.dout = dout.host_view(),
                               .dx = r_dx.host_view(),
                               .dweights = r_dweights.host_view(),
                               .dw13 = r_dw13.host_view(),
                               .dw2 = r_dw2.host_view()})
                    .ok());
    for (GpuArray* array : results()) array->download();
    // Numbers of at most a few hundred, each of a few roundings to bf16.
    expect_close(out, r_out, 2, "out");
    expect_close(preact, r_preact, 0.25, "preact");
    expect_close(dx, r_dx, 2, "dx");
    expect_close(dweights, r_dweights, 2, "dweights");
    expect_close(dw13, r_dw13, 4, "dw13");
    expect_close(dw2, r_dw2, 4, "dw2");
    for (GpuArray* array : results()) EXPECT_TRUE(array->guards_intact());
    workspace_->download();
    EXPECT_TRUE(workspace_->guards_intact());
  }

  uint64_t seed_ = 0;
  GpuArray x{DType::kBF16, {kTokens, kWidth}}, dout{DType::kBF16, {kTokens, kWidth}};
  GpuArray w13{DType::kBF16, {kExperts, kFull, kWidth}},
      w2{DType::kBF16, {kExperts, kWidth, kInner}};
  GpuArray weights{DType::kF32, {kTokens, kTopK}};
  GpuArray ids{DType::kI32, {kTokens, kTopK}}, sizes{DType::kI32, {kExperts}};
  GpuArray source{DType::kI32, {kSlots}}, slot{DType::kI32, {kTokens, kTopK}};
  GpuArray out{DType::kBF16, {kTokens, kWidth}}, preact{DType::kBF16, {kSlots, kFull}};
  GpuArray dx{DType::kBF16, {kTokens, kWidth}}, dweights{DType::kF32, {kTokens, kTopK}};
  GpuArray dw13{DType::kF32, {kExperts, kFull, kWidth}},
      dw2{DType::kF32, {kExperts, kWidth, kInner}};
  std::unique_ptr<GpuArray> workspace_;
};

TEST_P(MoeMlpGpu, NeedsAWorkspace) {
  ids.set(std::vector<int64_t>(kSlots, 1));
  MoeMlp layer({.w13 = w13.view(), .w2 = w2.view()});
  sizes.set(std::vector<int64_t>(kExperts, 0));
  for (GpuArray* array : {&source, &slot}) array->set(std::vector<int64_t>(kSlots, 0));
  poison_results();
  const Status status = layer.forward(context, forward_args(nullptr));
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_EQ(status.message().find("moe_mlp: options.workspace = null, expected "), 0u)
      << status.message();
  for (GpuArray* array : results()) {
    array->download();
    EXPECT_TRUE(array->unchanged());
  }
}

TEST_P(MoeMlpGpu, GraphReplaysWithOtherRoutings) {
  TestStream stream;
  const std::function<Status()> layer = layer_on(stream);
  verify::Random random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < kSlots; ++i) values.push_back(random.between(low, high));
    return values;
  };
  ids.set(draw(0, kExperts - 1));
  for (GpuArray* array : {&sizes, &source, &slot}) array->upload();
  poison_results();
  ASSERT_TRUE(layer().ok());
  ASSERT_TRUE(context.check(kGpu, stream).ok());
  const cudaGraphExec_t graph = capture(stream, layer);
  ASSERT_NE(graph, nullptr);
  // Some dropped; all to one; nobody anywhere; experts that don't exist.
  const std::vector<std::vector<int64_t>> routings = {
      draw(-1, kExperts), draw(0, kExperts - 1), draw(4, 4), draw(-3, -1), draw(2, kExperts + 50)};
  for (const std::vector<int64_t>& chosen : routings) {
    ids.set(chosen);
    poison_results();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
    ASSERT_TRUE(context.check(kGpu, stream).ok());
    expect_reference(chosen);
  }
  cudaGraphExecDestroy(graph);
}

TEST_P(MoeMlpGpu, HostileIndicesAndSizesStayInside) {
  TestStream stream;
  MoeMlpForwardArgs forward = forward_args(stream);
  MoeMlpBackwardArgs backward = backward_args(stream);
  const MoeMlpSaved saved{.x = forward.x, .preact = forward.preact, .routing = forward.routing};
  (void)layer_on(stream);  // makes the workspace
  for (CallOptions* options : {&forward.options, &backward.options}) {
    options->workspace = workspace_->data();
    options->workspace_size_bytes = static_cast<size_t>(workspace_->count());
  }
  const int64_t bad[] = {kSlots, -2, INT32_MAX, INT32_MIN, kSlots + 7};
  std::vector<int64_t> rows, tokens;
  for (int64_t i = 0; i < kSlots; ++i) {
    rows.push_back(i % 7 == 3 ? bad[i / 7 % 5] : i * 13 % kSlots);
    tokens.push_back(i % 5 == 2 ? bad[i / 5 % 5] : i * 11 % kTokens);
  }
  slot.set(rows);
  source.set(tokens);
  MoeMlp layer({.w13 = w13.view(), .w2 = w2.view()});
  const std::vector<std::vector<int64_t>> hostile_sizes = {
      {kSlots, kSlots, 1, 0, 0, 0}, {-1, 5, 5, 5, 5, 5}, {10, INT32_MAX, INT32_MAX, 3, 3, 3}};
  for (const std::vector<int64_t>& hostile : hostile_sizes) {
    sizes.set(hostile);
    poison_results();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_TRUE(layer.forward(context, forward).ok());
    ASSERT_TRUE(layer.backward(context, saved, backward).ok());
    EXPECT_EQ(context.check(kGpu, stream).code(), StatusCode::kInvalid);
    for (GpuArray* array : results()) {
      array->download();
      EXPECT_TRUE(array->guards_intact());
    }
    workspace_->download();
    EXPECT_TRUE(workspace_->guards_intact());
  }
}

INSTANTIATE_TEST_SUITE_P(All, MoeMlpGpu, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
