// Weight gradients on tall tiles (192x256): the bits that the other portable kernels give, with
// tiles that are moved back over each other at the edges, sums of every length, and lists.
#include <array>
#include <cmath>
#include <numeric>

#include "cuda/device.h"
#include "cuda/sm80/family.h"
#include "cuda/sm80/mma_shape.h"
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

constexpr int32_t kSharedBytes = sm80::TallShape::kSharedBytes;

/// Empty where the tall kernel can run.
std::string why_no_tall_tiles() {
  const std::string reason = why_no_gpu();
  if (!reason.empty()) return reason;
  const cuda::DeviceProperties* device = nullptr;
  if (const Status status = cuda::device_properties(0, &device); !status.ok()) {
    return status.message();
  }
  if (device->max_shared_bytes >= kSharedBytes) return {};
  return "needs " + std::to_string(kSharedBytes) + " bytes of shared memory, " + device->name +
         " gives a block " + std::to_string(device->max_shared_bytes);
}

struct Sides {
  int64_t k;
  int64_t n;
};

class TallTile : public GpuTest, public testing::WithParamInterface<Sides> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_tall_tiles(); !reason.empty()) GTEST_SKIP() << reason;
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
  if (const std::string reason = why_no_tall_tiles(); !reason.empty()) GTEST_SKIP() << reason;
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

/// Needs no GPU: a device is described by its properties.
TEST(TallTileChoice, IsMadeByShapeAndDevice) {
  const cuda::DeviceProperties hopper{.name = "Hopper",
                                      .major = 9,
                                      .sm_count = 132,
                                      .max_shared_bytes = 232448,
                                      .shared_bytes_per_sm = 233472};
  const cuda::DeviceProperties ampere{.name = "Ampere",
                                      .major = 8,
                                      .sm_count = 108,
                                      .max_shared_bytes = 166912,
                                      .shared_bytes_per_sm = 167936};
  plan::Problem wgrad;
  wgrad.op = plan::Op::kTgmm;
  wgrad.m = 65536;
  wgrad.k = 2048;
  wgrad.n = 1536;
  wgrad.num_groups = wgrad.num_local_groups = 128;
  wgrad.average_rows = 512;
  wgrad.compute = DType::kF32;
  const auto layout = [](Placement placement, int64_t row_stride, int64_t group_stride) {
    return plan::OperandLayout{.placement = placement,
                               .dtype = DType::kBF16,
                               .group_stride = group_stride,
                               .row_stride = row_stride,
                               .alignment_bytes = 128};
  };
  wgrad.lhs = layout(Placement::kRows, wgrad.k, 0);
  wgrad.rhs = layout(Placement::kRows, wgrad.n, 0);
  wgrad.out = layout(Placement::kStacked, wgrad.n, wgrad.k * wgrad.n);
  const auto chosen = [](const plan::Problem& problem, const cuda::DeviceProperties& device) {
    plan::Config config;
    EXPECT_TRUE(sm80::portable_family().configure(problem, device, nullptr, &config).ok());
    return config.kernel;
  };
  const auto with = [&wgrad](auto change) {
    plan::Problem problem = wgrad;
    change(problem);
    return problem;
  };
  EXPECT_EQ(chosen(wgrad, hopper), kTall);
  EXPECT_NE(chosen(wgrad, ampere), kTall);
  plan::Config config;
  EXPECT_FALSE(sm80::portable_family().configure(wgrad, ampere, kTall, &config).ok());

  // Each of these by itself is more than the kernel can do: pinned it is refused.
  const std::array beyond = {
      with([](auto& p) { p.out.dtype = DType::kF32; }),
      with([](auto& p) { p.has_beta = true; }),
      with([](auto& p) { p.k = p.lhs.row_stride = 184; }),
      with([](auto& p) { p.n = p.rhs.row_stride = p.out.row_stride = 248; }),
      with([](auto& p) { p.n = p.rhs.row_stride = p.out.row_stride = 1540; }),
      with([](auto& p) { p.lhs.alignment_bytes = 8; }),
      with([](auto& p) { p.rhs.row_stride = 1540; }),
      with([](auto& p) { p.rhs.col_stride = 2; }),
      with([](auto& p) { p.out.group_stride += 4; }),
      with([](auto& p) { p.lhs.row_stride = int64_t{1} << 30; }),
      with([](auto& p) { p.m = int64_t{1} << 31; }),
      with([](auto& p) { p.op = plan::Op::kGmm; })};
  for (const plan::Problem& problem : beyond) {
    EXPECT_NE(chosen(problem, hopper), kTall) << to_string(problem);
    EXPECT_FALSE(sm80::portable_family().configure(problem, hopper, kTall, &config).ok())
        << to_string(problem);
  }
  // These it can do, but others do them better.
  EXPECT_NE(chosen(with([](auto& p) { p.average_rows = 100; }), hopper), kTall);
  EXPECT_NE(chosen(with([](auto& p) { p.num_groups = p.num_local_groups = 4; }), hopper), kTall);
}

}  // namespace
}  // namespace cadre::tests
