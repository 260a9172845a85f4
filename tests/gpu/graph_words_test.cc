// What captured launches count their tiles with belongs to their graph: graphs run beside each
// other and beside the stream they were captured from, and give the words back when they are gone.
#include "cuda/graph_words.h"

#include <chrono>
#include <memory>
#include <set>
#include <thread>

#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

class GraphWordsTest : public GpuTest {};

/// Captures nothing but the loan of `count` words.
cudaGraph_t graph_with_words(cuda::GraphWords& words, cudaStream_t stream, int count,
                             std::set<uint32_t*>* lent) {
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  for (int i = 0; i < count; ++i) {
    uint32_t* word = nullptr;
    EXPECT_EQ(words.take(stream, &word), cudaSuccess);
    EXPECT_TRUE(lent->insert(word).second) << "lent twice";
  }
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  return graph;
}

/// Words come back some time after the last handle is gone.
bool reaches(const cuda::GraphWords& words, size_t available) {
  for (int i = 0; i < 500 && words.available() != available; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return words.available() == available;
}

TEST_F(GraphWordsTest, ComeBackWhenGraphAndExecutableAreGone) {
  cuda::GraphWords words;
  const TestStream stream;
  std::set<uint32_t*> lent;
  const cudaGraph_t graph = graph_with_words(words, stream, 3, &lent);
  ASSERT_NE(graph, nullptr);
  const size_t left = words.available();
  for (uint32_t* word : lent) {
    uint32_t value = 1;
    ASSERT_EQ(cudaMemcpy(&value, word, sizeof(value), cudaMemcpyDeviceToHost), cudaSuccess);
    EXPECT_EQ(value, 0u);
  }
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  // The executable still counts with them, so the next graph gets others.
  const cudaGraph_t second = graph_with_words(words, stream, 2, &lent);
  EXPECT_EQ(words.available(), left - 2);
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_TRUE(reaches(words, left + 1)) << words.available();
  ASSERT_EQ(cudaGraphDestroy(second), cudaSuccess);
  EXPECT_TRUE(reaches(words, left + 3)) << words.available();
}

TEST_F(GraphWordsTest, ThereAreMoreThanOneBlockHolds) {
  cuda::GraphWords words;
  const TestStream stream;
  std::set<uint32_t*> lent;
  const cudaGraph_t graph = graph_with_words(words, stream, 600, &lent);
  EXPECT_EQ(lent.size(), 600u);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(GraphWordsTest, AGraphMayOutliveThem) {
  const TestStream stream;
  std::set<uint32_t*> lent;
  auto words = std::make_unique<cuda::GraphWords>();
  const cudaGraph_t graph = graph_with_words(*words, stream, 1, &lent);
  words.reset();
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(GraphWordsTest, AreForCapturesAlone) {
  cuda::GraphWords words;
  const TestStream stream;
  uint32_t* word = nullptr;
  EXPECT_NE(words.take(stream, &word), cudaSuccess);
  EXPECT_EQ(word, nullptr);
}

/// gmm and tgmm of one layer, with a result and a workspace of their own.
struct Layer {
  static constexpr int64_t kM = 4096;
  static constexpr int64_t kK = 256;
  static constexpr int64_t kN = 2048;
  static constexpr int64_t kGroups = 16;

  GpuArray y{DType::kBF16, {kM, kN}};
  GpuArray dw{DType::kBF16, {kGroups, kK, kN}};
  size_t workspace_bytes = size_t{1} << 20;
  void* workspace = device_memory().allocate(workspace_bytes);

  Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
  ~Layer() { device_memory().release(workspace); }

  void poison() {
    y.upload();
    dw.upload();
  }
  void fetch() {
    y.download();
    dw.download();
  }
};

class SideBySide : public GpuBackendTest {};

TEST_P(SideBySide, GraphsRunBesideEachOtherAndTheStream) {
  // Few blocks to a launch, so that launches of three streams share the GPU, and many tiles to a
  // block: two launches that counted with one word would leave tiles out.
  ContextOptions few = options();
  few.sm_count = 40;
  Context shared(few);
  GpuArray x(DType::kBF16, {Layer::kM, Layer::kK});
  GpuArray w(DType::kBF16, {Layer::kGroups, Layer::kK, Layer::kN});
  GpuArray dy(DType::kBF16, {Layer::kM, Layer::kN});
  GpuArray sizes(DType::kI32, {Layer::kGroups});
  x.fill_random(1);
  w.fill_random(2);
  dy.fill_random(3);
  sizes.set({0, 1, 700, 64, 300, 129, 512, 0, 255, 256, 257, 400, 600, 90, 500, 30});
  Layer expected;
  Layer layers[3];
  for (Layer& layer : layers) layer.poison();  // nothing is allocated during the captures
  const TestStream streams[3];
  const auto call = [&](Layer& layer, cudaStream_t stream) {
    CallOptions on;
    on.stream = stream;
    on.workspace = layer.workspace;
    on.workspace_size_bytes = layer.workspace_bytes;
    const Status forward = gmm(shared, {.lhs = x.view(),
                                        .rhs = w.view(),
                                        .group_sizes = sizes.sizes(),
                                        .out = layer.y.view(),
                                        .options = on});
    if (!forward.ok()) return forward;
    return tgmm(shared, {.lhs = x.view(),
                         .rhs = dy.view(),
                         .group_sizes = sizes.sizes(),
                         .out = layer.dw.view(),
                         .options = on});
  };
  const Status alone = call(expected, streams[0]);
  ASSERT_TRUE(alone.ok()) << alone.message();
  ASSERT_TRUE(shared.check(kGpu, streams[0]).ok());
  expected.fetch();

  // Both graphs are captured from the stream that runs the third layer.
  cudaGraphExec_t graphs[2];
  for (int i = 0; i < 2; ++i) {
    graphs[i] = capture(streams[2], [&] { return call(layers[i], streams[2]); });
    ASSERT_NE(graphs[i], nullptr);
  }
  for (int round = 0; round < 5; ++round) {
    for (Layer& layer : layers) layer.poison();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int repeat = 0; repeat < 10; ++repeat) {
      for (int i = 0; i < 2; ++i) {
        ASSERT_EQ(cudaGraphLaunch(graphs[i], streams[i]), cudaSuccess);
      }
      ASSERT_TRUE(call(layers[2], streams[2]).ok());
    }
    ASSERT_TRUE(shared.check(kGpu, nullptr).ok());
    for (Layer& layer : layers) {
      layer.fetch();
      EXPECT_TRUE(layer.y.same_after(expected.y)) << "round " << round;
      EXPECT_TRUE(layer.dw.same_after(expected.dw)) << "round " << round;
    }
  }
  for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

INSTANTIATE_TEST_SUITE_P(All, SideBySide, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
