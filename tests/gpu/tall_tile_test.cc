// Weight gradients on tall tiles (192x256): the bits that the other portable kernels give, with
// tiles that are moved back over each other at the edges, sums of every length, and lists.
#include <array>
#include <cmath>
#include <numeric>

#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr const char* kTall = "sm80/mma_192x256x64";
constexpr const char* kOther = "sm80/mma_128x128x32";
/// Ends of K inside a step, a block, and on their edges; empty groups; sums of less than the ring.
const std::vector<int64_t> kRows = {300, 0,  1,   64, 65,  129, 128, 15,  0,   192,
                                    63,  33, 161, 16, 257, 32,  96,  193, 160, 385};
constexpr int64_t kTailRows = 9;
constexpr double kAlpha = -0.75;

struct Sides {
  int64_t k;
  int64_t n;
};

class TallTile : public GpuTest, public testing::WithParamInterface<Sides> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    sizes.set(kRows);
    x.fill_random(1);
    y.fill_random(2);
    // Rows behind the last group hold NaN: no group may meet them.
    for (int64_t row = m - kTailRows; row < m; ++row) {
      for (int64_t i = 0; i < k; ++i) x.store(row * k + i, std::nan(""));
      for (int64_t i = 0; i < n; ++i) y.store(row * n + i, std::nan(""));
    }
    x.upload();
    y.upload();
  }

  /// Into a poisoned array of its own.
  GpuArray run(const char* kernel, Context& context, bool list) {
    GpuArray out(DType::kBF16, {num_groups, k, n});
    std::vector<void*> pointers;
    for (int64_t g = 0; g < num_groups; ++g) {
      pointers.push_back(static_cast<char*>(out.data()) + g * k * n * 2);
    }
    TgmmArgs call{.lhs = x.view(),
                  .rhs = y.view(),
                  .group_sizes = sizes.sizes(),
                  .out = out.view(),
                  .alpha = kAlpha};
    if (list) {
      call.out =
          GroupedTensor::list(pointers.data(), num_groups,
                              TensorView::contiguous(pointers.front(), DType::kBF16, {k, n}, kGpu));
    }
    call.options.config = kernel;
    const Status status = tgmm(context, call);
    EXPECT_TRUE(status.ok()) << status.message();
    out.download();
    return out;
  }

  const int64_t k = GetParam().k;
  const int64_t n = GetParam().n;
  const int64_t num_groups = static_cast<int64_t>(kRows.size());
  const int64_t m = std::accumulate(kRows.begin(), kRows.end(), kTailRows);
  GpuArray sizes{DType::kI32, {num_groups}};
  GpuArray x{DType::kBF16, {m, k}};
  GpuArray y{DType::kBF16, {m, n}};
  Context everything;
  /// One block walks over all tiles, so that loads run on from tile to tile.
  Context one_multiprocessor{[] {
    ContextOptions options;
    options.sm_count = 1;
    return options;
  }()};
};

TEST_P(TallTile, GivesTheBitsOfTheOthers) {
  const GpuArray expected = run(kOther, everything, false);
  for (Context* context : {&everything, &one_multiprocessor}) {
    for (const bool list : {false, true}) {
      const GpuArray result = run(kTall, *context, list);
      EXPECT_TRUE(result.guards_intact());
      EXPECT_TRUE(result.same_after(expected))
          << (list ? "list" : "stacked") << (context == &everything ? "" : ", one multiprocessor");
    }
  }
}

TEST_P(TallTile, TakesAnySizes) {
  GpuArray first = run(kTall, everything, false);
  for (int64_t i = 0; i < first.count(); ++i) ASSERT_TRUE(std::isfinite(first.after(i))) << i;
  std::vector<int64_t> turned(kRows.rbegin(), kRows.rend());
  sizes.set(turned);
  EXPECT_TRUE(run(kTall, everything, false).same_after(run(kOther, everything, false)));
  std::vector<int64_t> one_takes_all(kRows.size(), 0);
  one_takes_all[3] = m - kTailRows;
  sizes.set(one_takes_all);
  EXPECT_TRUE(run(kTall, everything, false).same_after(run(kOther, everything, false)));
}

INSTANTIATE_TEST_SUITE_P(All, TallTile,
                         testing::Values(Sides{192, 256}, Sides{200, 264}, Sides{392, 520}),
                         [](const auto& sides) {
                           return std::to_string(sides.param.k) + "x" +
                                  std::to_string(sides.param.n);
                         });

/// What the tall kernel doesn't compute is refused, and computed by another one by itself.
TEST(TallTileChoice, RefusesWhatItCannotCompute) {
  if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  GpuArray x(DType::kBF16, {64, 256}), y(DType::kBF16, {64, 320}), sizes(DType::kI32, {2});
  x.fill_random(1);
  y.fill_random(2);
  sizes.set({20, 44});
  Context context;
  const auto status_of = [&](GpuArray& out, double beta) {
    TgmmArgs call{.lhs = x.view(),
                  .rhs = y.view(),
                  .group_sizes = sizes.sizes(),
                  .out = out.view(),
                  .beta = beta};
    call.options.config = kTall;
    return tgmm(context, call);
  };
  GpuArray same_type(DType::kBF16, {2, 256, 320}), wider(DType::kF32, {2, 256, 320});
  same_type.fill_random(3);
  EXPECT_TRUE(status_of(same_type, 0).ok());
  EXPECT_FALSE(status_of(same_type, 1).ok());
  EXPECT_FALSE(status_of(wider, 0).ok());
}

}  // namespace
}  // namespace cadre::tests
