// The check of `cadre bench --device cuda` can fail: every case passes when right, and each planted
// fault is found. Calls are timed in the conditions that were asked for.
#include "bench/cuda/product.h"
#include "bench/cuda/runner.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

using bench::Case;
using bench::Checked;
using bench::Layer;
using bench::Pass;
using bench::Product;

// 5 groups at skew 1: uneven, and n differs from k.
constexpr shapes::Shape kShape = {"small", "train", 5, 60, 2, 64, 96};

class BenchCheck : public GpuTest {
 protected:
  Checked check(Pass pass, const Case& wanted, const std::function<void(const Product&)>& fault) {
    const Layer layer(kShape, 1.0, pass, wanted.dtype);
    const Product product(layer, wanted, context_, stream_);
    const auto before = product.prepare();
    product.run();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    fault(product);
    return product.compare(before);
  }
  Context context_{ContextOptions{.backend = "cuda"}};
  TestStream stream_;
};

const auto kNoFault = [](const Product&) {};

/// Every case of the benchmark on the small layer.
std::vector<std::pair<Pass, Case>> all_cases() {
  std::vector<bench::CaseGroup> groups;
  EXPECT_TRUE(make_case_groups({.shapes = {"qwen3-30b-w2", "decode-qwen3-30b-w2"}}, &groups).ok());
  std::vector<std::pair<Pass, Case>> cases;
  for (const bench::CaseGroup& group : groups) {
    for (const Case& one : group.cases) cases.emplace_back(group.pass, one);
  }
  return cases;
}

TEST_F(BenchCheck, EveryCasePassesWhenRight) {
  for (const auto& [pass, wanted] : all_cases()) {
    const Checked checked = check(pass, wanted, kNoFault);
    EXPECT_TRUE(checked.passed()) << wanted.name << " at " << checked.where << ": " << checked.ratio
                                  << ", not finite " << checked.not_finite;
  }
}

TEST_F(BenchCheck, EveryPlantedFaultIsFoundInEveryCase) {
  const auto zero = [](const Product& product) { product.out().fill_bytes(0); };
  const auto one_unwritten = [](const Product& product) {
    // The last element, and with it whatever a tile that wasn't stored would leave.
    char* end = static_cast<char*>(product.out().get()) + product.out().size_bytes();
    EXPECT_EQ(cudaMemset(end - 2, 0xff, 2), cudaSuccess);
  };
  for (const auto& [pass, wanted] : all_cases()) {
    EXPECT_FALSE(check(pass, wanted, zero).passed()) << wanted.name;
    EXPECT_GT(check(pass, wanted, one_unwritten).not_finite, 0) << wanted.name;
  }
}

TEST_F(BenchCheck, AnotherLayersResultIsWrong) {
  // The forward of weights [g, k, n] taken for that of [g, n, k].
  const Layer forward(kShape, 1.0, Pass::kForward, DType::kBF16);
  const Layer dgrad(kShape, 1.0, Pass::kDgrad, DType::kBF16);
  const Product right(forward, {}, context_, stream_);
  const Product other(dgrad, {}, context_, stream_);
  const auto before = right.prepare();
  other.run();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  ASSERT_EQ(cudaMemcpy(right.out().get(), other.out().get(), right.out().size_bytes(),
                       cudaMemcpyDeviceToDevice),
            cudaSuccess);
  const Checked checked = right.compare(before);
  EXPECT_EQ(checked.not_finite, 0);
  EXPECT_GT(checked.ratio, 1.0);
}

TEST_F(BenchCheck, ACaseIsTimedInEveryConditionThatWasAskedFor) {
  std::unique_ptr<bench::CudaRunner> runner;
  ASSERT_TRUE(bench::CudaRunner::make(&runner).ok());
  const bench::CaseGroup group{
      .shape = kShape,
      .dense = false,
      .conditions = {std::begin(bench::kConditions), std::end(bench::kConditions)},
      .cases = {{.name = "forward", .alone = true}, {.name = "other"}}};
  std::vector<bench::Measurement> measured;
  const Status status = runner->measure(group, 3, &measured);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(measured.size(), 2u);
  std::vector<bench::Condition> conditions;
  for (const bench::Timing& timing : measured[0].timings) {
    conditions.push_back(timing.condition);
    EXPECT_GT(timing.calls, 0);
    EXPECT_GT(timing.times.least_s, 0);
    EXPECT_LE(timing.times.least_s, timing.times.median_s);
  }
  EXPECT_EQ(conditions, group.conditions);
  ASSERT_EQ(measured[1].timings.size(), 1u);
  EXPECT_EQ(measured[1].timings[0].condition, bench::Condition::kMixed);
}

}  // namespace
}  // namespace cadre::tests
