// Row indices on the device that are out of range, and graphs of the row ops replayed with other
// routings and of select_experts with other logits.
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kTokens = 50, kTopK = 4, kExperts = 9, kWidth = 40, kSlots = kTokens * kTopK;

class RowFaults : public GpuBackendTest {
 protected:
  void SetUp() override {
    GpuBackendTest::SetUp();
    if (IsSkipped()) return;
    x.fill_random(1);
    y.fill_random(2);
    weights.fill_random(3);
  }

  void expect_fault() {
    const Status met = context.check(kGpu);
    EXPECT_EQ(met.code(), StatusCode::kInvalid);
    EXPECT_NE(met.message().find("row index"), std::string::npos) << met.message();
    EXPECT_TRUE(context.check(kGpu).ok()) << "reported twice";
  }

  /// Mostly good indices below `limit`, with hostile ones among them.
  static std::vector<int64_t> hostile(int64_t count, int64_t limit) {
    const int64_t bad[] = {limit, -2, INT64_MAX, INT64_MIN, limit + 7};
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < count; ++i) {
      indices.push_back(i % 7 == 3 ? bad[i / 7 % 5] : i * 13 % limit);
    }
    return indices;
  }

  GpuArray x{DType::kF32, {kTokens, kWidth}};
  GpuArray y{DType::kF32, {kSlots, kWidth}};
  GpuArray weights{DType::kF32, {kTokens, kTopK}};
  GpuArray slot{DType::kI64, {kTokens, kTopK}};
  GpuArray source{DType::kI64, {kSlots}};
};

TEST_P(RowFaults, PermuteGivesZerosForBadIndices) {
  GpuArray out{DType::kF32, {kSlots, kWidth}};
  const std::vector<int64_t> indices = hostile(kSlots, kTokens);
  source.set(indices);
  out.upload();
  ASSERT_TRUE(
      permute(context, {.x = x.view(), .source_row = source.view(), .out = out.view()}).ok());
  expect_fault();
  out.download();
  EXPECT_TRUE(out.guards_intact());
  for (int64_t row = 0; row < kSlots; ++row) {
    const int64_t from = indices[static_cast<size_t>(row)];
    const bool good = from >= 0 && from < kTokens;
    for (int64_t col = 0; col < kWidth; ++col) {
      ASSERT_EQ(out.after(row * kWidth + col), good ? x.before(from * kWidth + col) : 0.0) << row;
    }
  }
}

TEST_P(RowFaults, PermuteStaysInsideWithBadSlots) {
  GpuArray out{DType::kF32, {kSlots, kWidth}};
  const std::vector<int64_t> from = hostile(kSlots, kTokens);
  source.set(from);
  slot.set(hostile(kSlots, kSlots));
  out.upload();
  ASSERT_TRUE(
      permute(
          context,
          {.x = x.view(), .source_row = source.view(), .slot_row = slot.view(), .out = out.view()})
          .ok());
  expect_fault();
  out.download();
  EXPECT_TRUE(out.guards_intact());
  for (int64_t row = 0; row < kSlots; ++row) {
    const int64_t token = from[static_cast<size_t>(row)];
    const bool good = token >= 0 && token < kTokens;
    for (int64_t col = 0; col < kWidth; ++col) {
      ASSERT_EQ(out.after(row * kWidth + col), good ? x.before(token * kWidth + col) : 0.0) << row;
    }
  }
}

TEST_P(RowFaults, CombineLeavesBadIndicesOut) {
  GpuArray out{DType::kF32, {kTokens, kWidth}};
  const std::vector<int64_t> indices = hostile(kSlots, kSlots);
  slot.set(indices);
  out.upload();
  ASSERT_TRUE(
      combine(
          context,
          {.y = y.view(), .slot_row = slot.view(), .weights = weights.view(), .out = out.view()})
          .ok());
  expect_fault();
  out.download();
  EXPECT_TRUE(out.guards_intact());
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t col = 0; col < kWidth; ++col) {
      double sum = 0;
      for (int64_t j = 0; j < kTopK; ++j) {
        const int64_t row = indices[static_cast<size_t>(t * kTopK + j)];
        if (row < 0 || row >= kSlots) continue;
        sum += weights.before(t * kTopK + j) * y.before(row * kWidth + col);
      }
      ASSERT_NEAR(out.after(t * kWidth + col), sum, 1e-5) << t;
    }
  }
}

TEST_P(RowFaults, GradientsStayInsideWithBadIndices) {
  GpuArray dy{DType::kF32, {kSlots, kWidth}};
  GpuArray dweights{DType::kF32, {kTokens, kTopK}};
  slot.set(hostile(kSlots, kSlots));
  source.set(hostile(kSlots, kTokens));
  dy.upload();
  dweights.upload();
  ASSERT_TRUE(combine_grad(context, {.dout = x.view(),
                                     .slot_row = slot.view(),
                                     .source_row = source.view(),
                                     .weights = weights.view(),
                                     .y = y.view(),
                                     .dy = dy.view(),
                                     .dweights = dweights.view()})
                  .ok());
  expect_fault();
  dy.download();
  dweights.download();
  EXPECT_TRUE(dy.guards_intact() && dweights.guards_intact());
  for (int64_t i = 0; i < dy.count(); ++i) ASSERT_FALSE(std::isnan(dy.after(i))) << i;
  for (int64_t i = 0; i < dweights.count(); ++i) ASSERT_FALSE(std::isnan(dweights.after(i))) << i;
}

TEST_P(RowFaults, GraphReplaysWithOtherRoutings) {
  GpuArray ids{DType::kI32, {kTokens, kTopK}};
  GpuArray sizes{DType::kI32, {kExperts}};
  GpuArray rows{DType::kF32, {kSlots, kWidth}};
  GpuArray out{DType::kF32, {kTokens, kWidth}};
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  const CallOptions on_stream{.stream = stream};
  const auto layer = [&]() -> Status {
    if (Status s = route(context, {.expert_ids = ids.view(),
                                   .group_sizes = sizes.view(),
                                   .source_row = source.view(),
                                   .slot_row = slot.view(),
                                   .options = on_stream});
        !s.ok()) {
      return s;
    }
    if (Status s = permute(
            context,
            {.x = x.view(), .source_row = source.view(), .out = rows.view(), .options = on_stream});
        !s.ok()) {
      return s;
    }
    return combine(context, {.y = rows.view(),
                             .slot_row = slot.view(),
                             .weights = weights.view(),
                             .out = out.view(),
                             .options = on_stream});
  };
  verify::Random random(5);
  const auto draw = [&](int64_t low, int64_t high) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < kSlots; ++i) values.push_back(random.between(low, high));
    return values;
  };
  ids.set(draw(0, kExperts - 1));
  for (GpuArray* array : {&sizes, &rows, &out, &slot, &source}) array->upload();
  ASSERT_TRUE(layer().ok());
  ASSERT_TRUE(context.check(kGpu, stream).ok());
  const cudaGraphExec_t graph = capture(stream, layer);
  ASSERT_NE(graph, nullptr);
  for (int64_t replay = 0; replay < 4; ++replay) {
    const std::vector<int64_t> chosen = draw(replay == 3 ? 4 : -1, replay == 3 ? 4 : kExperts);
    ids.set(chosen);
    out.upload();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
    ASSERT_TRUE(context.check(kGpu, stream).ok());
    out.download();
    // Rows come back to their own token: the sum is x times the weights of the slots that count.
    for (int64_t t = 0; t < kTokens; ++t) {
      double weight = 0;
      for (int64_t j = 0; j < kTopK; ++j) {
        const int64_t id = chosen[static_cast<size_t>(t * kTopK + j)];
        if (id >= 0 && id < kExperts) weight += weights.before(t * kTopK + j);
      }
      for (int64_t col = 0; col < kWidth; ++col) {
        ASSERT_NEAR(out.after(t * kWidth + col), weight * x.before(t * kWidth + col), 1e-5);
      }
    }
  }
  cudaGraphExecDestroy(graph);
  cudaStreamDestroy(stream);
}

/// What select_experts and its gradient write.
struct Selected {
  GpuArray ids{DType::kI32, {kTokens, kTopK}};
  GpuArray weights{DType::kF32, {kTokens, kTopK}};
  GpuArray dlogits{DType::kF32, {kTokens, kExperts}};

  std::vector<GpuArray*> all() { return {&ids, &weights, &dlogits}; }
};

TEST_P(RowFaults, SelectExpertsGraphReplaysWithOtherLogits) {
  GpuArray logits{DType::kF32, {kTokens, kExperts}};
  Selected got, expected;
  TestStream stream;
  Context reference = reference_context();
  const auto select = [&](Context& on, Selected& out, bool device) {
    const auto view = [device](GpuArray& array) {
      return device ? array.view() : array.host_view();
    };
    const CallOptions options{.stream = device ? static_cast<cudaStream_t>(stream) : nullptr};
    const Status status = select_experts(on, {.logits = view(logits),
                                              .expert_ids = view(out.ids),
                                              .weights = view(out.weights),
                                              .options = options});
    if (!status.ok()) return status;
    return select_experts_grad(on, {.logits = view(logits),
                                    .expert_ids = view(out.ids),
                                    .dweights = view(weights),
                                    .dlogits = view(out.dlogits),
                                    .options = options});
  };
  const auto call = [&] { return select(context, got, true); };
  logits.fill_random(4);
  for (GpuArray* array : got.all()) array->upload();
  ASSERT_TRUE(call().ok());
  ASSERT_TRUE(context.check(kGpu, stream).ok());
  const cudaGraphExec_t graph = capture(stream, call);
  ASSERT_NE(graph, nullptr);
  for (uint64_t replay = 0; replay < 5; ++replay) {
    logits.fill_random(10 + replay);
    if (replay == 3) {  // ties go to the lower index
      for (int64_t i = 0; i < logits.count(); ++i) logits.store(i, 0.5);
      logits.upload();
    }
    for (GpuArray* array : got.all()) array->upload();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
    ASSERT_TRUE(context.check(kGpu, stream).ok());
    for (GpuArray* array : got.all()) {
      array->download();
      EXPECT_TRUE(array->guards_intact());
    }
    const Status status = select(reference, expected, false);
    ASSERT_TRUE(status.ok()) << status.message();
    const std::string what = "replay " + std::to_string(replay);
    expect_close(got.ids, expected.ids, 0, what + ", expert_ids");
    expect_close(got.weights, expected.weights, 1e-5, what + ", weights");
    expect_close(got.dlogits, expected.dlogits, 1e-5, what + ", dlogits");
  }
  cudaGraphExecDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(All, RowFaults, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
