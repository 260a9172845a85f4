// Captured calls of the Hopper kernels with so few CTAs that each takes many tiles: every replay
// has the bits of the portable kernel.
#include "tests/gpu/hopper_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 640, kK = 136, kN = 264, kGroups = 5;
const std::vector<std::vector<int64_t>> kSizes = {
    {130, 0, 97, 13, 390}, {0, 0, 0, 0, 0}, {0, 0, 640, 0, 0}, {1, 200, 64, 330, 35}};

class HopperGraph : public HopperKernelTest {
 protected:
  HopperGraph() : HopperKernelTest({kM, kK, kN, kGroups}) {}

  void SetUp() override {
    HopperKernelTest::SetUp();
    if (!IsSkipped()) sizes.set(kSizes[0]);
  }

  CallOptions options() const {
    CallOptions options = pinned();
    options.stream = static_cast<cudaStream_t>(stream);
    return options;
  }

  /// `call(context, out, options)` is captured once; each replay must give what the portable
  /// kernels give. `out` starts the same each time.
  template <typename Call>
  void expect_replays(GpuArray& out, GpuArray& expected, const Call& call) {
    out.fill_random(4);
    expected.fill_random(4);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // the stream waits for no copy of ours
    // Makes the workspace that a capture can't.
    const Status first = call(context, out, options());
    ASSERT_TRUE(first.ok()) << first.message();
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);  // it writes what is filled anew below
    cudaGraphExec_t graph = capture(stream, [&] { return call(context, out, options()); });
    ASSERT_NE(graph, nullptr);
    for (const std::vector<int64_t>& replayed : kSizes) {
      sizes.set(replayed);
      out.upload();
      expected.upload();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      const Status status = call(portable, expected, {});
      ASSERT_TRUE(status.ok()) << status.message();
      out.download();
      expected.download();
      EXPECT_TRUE(out.same_after(expected)) << "sizes " << testing::PrintToString(replayed);
      EXPECT_TRUE(out.guards_intact());
    }
    cudaGraphExecDestroy(graph);
  }

  TestStream stream;
  GpuArray sizes{DType::kI32, {kGroups}};
};

TEST_P(HopperGraph, GmmOfManyTilesReplays) {
  for (const bool accumulate : {false, true}) {
    if (accumulate && !subject().c) continue;
    GpuArray out(DType::kBF16, {kM, kN});
    GpuArray expected(DType::kBF16, {kM, kN});
    expect_replays(out, expected,
                   [&](Context& on, const GpuArray& to, const CallOptions& call_options) {
                     return run_gmm(on, to, sizes, accumulate, call_options);
                   });
  }
}

INSTANTIATE_TEST_SUITE_P(All, HopperGraph, testing::ValuesIn(restricted_names("gmm")), backend_of);

class HopperTgmmGraph : public HopperGraph {};

TEST_P(HopperTgmmGraph, TgmmOfManyTilesReplays) {
  for (const bool accumulate : {false, true}) {
    GpuArray out(DType::kF32, {kGroups, kK, kN});
    GpuArray expected(DType::kF32, {kGroups, kK, kN});
    expect_replays(out, expected,
                   [&](Context& on, const GpuArray& to, const CallOptions& call_options) {
                     return run_tgmm(on, to, sizes, accumulate, call_options);
                   });
  }
}

INSTANTIATE_TEST_SUITE_P(All, HopperTgmmGraph, testing::ValuesIn(restricted_names("tgmm")),
                         backend_of);

}  // namespace
}  // namespace cadre::tests
