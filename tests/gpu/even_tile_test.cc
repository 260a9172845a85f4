// Products on even tiles (160x256): the bits that the other portable kernels
// give, with groups of every height, columns that are moved back over each
// other, sums of every length, and lists.
#include <array>
#include <cmath>
#include <numeric>

#include "cuda/device.h"
#include "cuda/sm80/family.h"
#include "cuda/sm80/mma_shape.h"
#include "cuda/sm80/shape_fits.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr const char* kEven = "sm80/mma_160x256x64";
constexpr const char* kOther = "sm80/mma_128x128x32";
/// Groups of every number of slices of 32 rows, one tile and more of them, ends
/// inside a slice and on its edge; in the weight gradient sums that end inside
/// a step, a block, and on their edges.
const std::vector<int64_t> kRows = {300, 0,   1,  64,  65, 129, 128, 15,  0,   192, 63,
                                    33,  161, 16, 257, 32, 96,  193, 160, 385, 530, 20};
constexpr int64_t kTailRows = 9;
constexpr double kAlpha = -0.75;

/// Empty where the kernel can run.
std::string why_no_even_tiles() {
  const std::string reason = why_no_gpu();
  if (!reason.empty()) return reason;
  const cuda::DeviceProperties* device = nullptr;
  if (const Status status = cuda::device_properties(0, &device); !status.ok()) {
    return status.message();
  }
  if (sm80::fits<sm80::EvenShape>(*device)) return {};
  return "needs " + std::to_string(sm80::EvenShape::kSharedBytes) + " bytes of shared memory, " +
         device->name + " gives a block " + std::to_string(device->max_shared_bytes);
}

struct Sides {
  int64_t k;
  int64_t n;
  DType dtype = DType::kBF16;
};

class EvenTile : public GpuTest, public testing::WithParamInterface<Sides> {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_even_tiles(); !reason.empty()) GTEST_SKIP() << reason;
    sizes.set(kRows);
    x.fill_random(1);
    w.fill_random(2);
    y.fill_random(3);
    for (int64_t g = 0; g < num_groups; ++g) {
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          w_t.store((g * n + j) * k + i, w.before((g * k + i) * n + j));
        }
      }
    }
    w_t.upload();
    // Rows behind the last group hold NaN: no group may meet them.
    for (int64_t row = m - kTailRows; row < m; ++row) {
      for (int64_t i = 0; i < k; ++i) x.store(row * k + i, std::nan(""));
      for (int64_t i = 0; i < n; ++i) y.store(row * n + i, std::nan(""));
    }
    x.upload();
    y.upload();
  }

  /// Into a poisoned array of its own.
  GpuArray gmm_on(const char* kernel, Context& context, bool transposed, bool list) {
    GpuArray out(dtype, {m, n});
    const GpuArray& weights = transposed ? w_t : w;
    std::vector<void*> pointers;
    for (int64_t g = 0; g < num_groups; ++g) {
      pointers.push_back(static_cast<char*>(weights.data()) + g * k * n * 2);
    }
    GmmArgs call{.lhs = x.view(),
                 .rhs = weights.view(),
                 .group_sizes = sizes.sizes(),
                 .out = out.view(),
                 .transpose_rhs = transposed,
                 .alpha = kAlpha};
    if (list) {
      call.rhs = GroupedTensor::list(
          pointers.data(), num_groups,
          transposed ? TensorView::contiguous(pointers.front(), dtype, {n, k}, kGpu)
                     : TensorView::contiguous(pointers.front(), dtype, {k, n}, kGpu));
    }
    call.options.config = kernel;
    const Status status = gmm(context, call);
    EXPECT_TRUE(status.ok()) << status.message();
    out.download();
    return out;
  }

  GpuArray tgmm_on(const char* kernel, Context& context, bool list) {
    GpuArray out(dtype, {num_groups, k, n});
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
      call.out = GroupedTensor::list(pointers.data(), num_groups,
                                     TensorView::contiguous(pointers.front(), dtype, {k, n}, kGpu));
    }
    call.options.config = kernel;
    const Status status = tgmm(context, call);
    EXPECT_TRUE(status.ok()) << status.message();
    out.download();
    return out;
  }

  void expect_the_bits_of_gmm() {
    const GpuArray expected = gmm_on(kOther, everything, false, false);
    for (int64_t i = 0; i < expected.count(); ++i) ASSERT_TRUE(std::isfinite(expected.after(i)));
    for (Context* context : {&everything, &one_multiprocessor}) {
      for (const bool transposed : {false, true}) {
        for (const bool list : {false, true}) {
          const GpuArray result = gmm_on(kEven, *context, transposed, list);
          EXPECT_TRUE(result.guards_intact());
          EXPECT_TRUE(result.same_after(expected))
              << (transposed ? "transposed" : "as stored") << (list ? ", list" : "")
              << (context == &everything ? "" : ", one multiprocessor");
        }
      }
    }
  }

  void expect_the_bits_of_tgmm() {
    const GpuArray expected = tgmm_on(kOther, everything, false);
    for (int64_t i = 0; i < expected.count(); ++i) ASSERT_TRUE(std::isfinite(expected.after(i)));
    for (Context* context : {&everything, &one_multiprocessor}) {
      for (const bool list : {false, true}) {
        const GpuArray result = tgmm_on(kEven, *context, list);
        EXPECT_TRUE(result.guards_intact());
        EXPECT_TRUE(result.same_after(expected))
            << (list ? "list" : "stacked")
            << (context == &everything ? "" : ", one multiprocessor");
      }
    }
  }

  const DType dtype = GetParam().dtype;
  const int64_t k = GetParam().k;
  const int64_t n = GetParam().n;
  const int64_t num_groups = static_cast<int64_t>(kRows.size());
  const int64_t m = std::accumulate(kRows.begin(), kRows.end(), kTailRows);
  GpuArray sizes{DType::kI32, {num_groups}};
  GpuArray x{dtype, {m, k}};
  GpuArray y{dtype, {m, n}};
  GpuArray w{dtype, {num_groups, k, n}};
  GpuArray w_t{dtype, {num_groups, n, k}};
  Context everything;
  /// One block walks over all tiles, so that loads run on from tile to tile.
  Context one_multiprocessor{[] {
    ContextOptions options;
    options.sm_count = 1;
    return options;
  }()};
};

TEST_P(EvenTile, GmmHasTheBitsOfTheOthers) { expect_the_bits_of_gmm(); }

TEST_P(EvenTile, TgmmHasTheBitsOfTheOthers) { expect_the_bits_of_tgmm(); }

TEST_P(EvenTile, TakesAnySizes) {
  sizes.set(std::vector<int64_t>(kRows.rbegin(), kRows.rend()));
  expect_the_bits_of_gmm();
  expect_the_bits_of_tgmm();
  std::vector<int64_t> one_takes_all(kRows.size(), 0);
  one_takes_all[3] = m - kTailRows;
  sizes.set(one_takes_all);
  expect_the_bits_of_gmm();
  expect_the_bits_of_tgmm();
}

INSTANTIATE_TEST_SUITE_P(All, EvenTile,
                         testing::Values(Sides{160, 256}, Sides{168, 264}, Sides{360, 520},
                                         Sides{168, 264, DType::kF16}),
                         [](const auto& sides) {
                           return std::to_string(sides.param.k) + "x" +
                                  std::to_string(sides.param.n) +
                                  (sides.param.dtype == DType::kF16 ? "_f16" : "");
                         });

/// What the kernel doesn't compute is refused, and computed by another one by
/// itself.
TEST(EvenTileChoice, RefusesWhatItCannotCompute) {
  if (const std::string reason = why_no_even_tiles(); !reason.empty()) GTEST_SKIP() << reason;
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
    call.options.config = kEven;
    return tgmm(context, call);
  };
  GpuArray same_type(DType::kBF16, {2, 256, 320}), wider(DType::kF32, {2, 256, 320});
  same_type.fill_random(3);
  EXPECT_TRUE(status_of(same_type, 0).ok());
  EXPECT_FALSE(status_of(same_type, 1).ok());
  EXPECT_FALSE(status_of(wider, 0).ok());
}

class EvenTileChoices : public testing::Test {
 protected:
  static plan::OperandLayout layout(Placement placement, int64_t row_stride, int64_t group_stride) {
    return {.placement = placement,
            .dtype = DType::kBF16,
            .group_stride = group_stride,
            .row_stride = row_stride,
            .alignment_bytes = 128};
  }
  static plan::Problem problem(plan::Op op) {
    plan::Problem p;
    p.op = op;
    p.m = 65536;
    p.k = 2048;
    p.n = 1536;
    p.num_groups = p.num_local_groups = 128;
    p.average_rows = 512;
    p.compute = DType::kF32;
    p.lhs = layout(Placement::kRows, p.k, 0);
    const bool is_tgmm = op == plan::Op::kTgmm;
    p.rhs =
        is_tgmm ? layout(Placement::kRows, p.n, 0) : layout(Placement::kStacked, p.n, p.k * p.n);
    p.out =
        is_tgmm ? layout(Placement::kStacked, p.n, p.k * p.n) : layout(Placement::kRows, p.n, 0);
    return p;
  }
  template <typename Change>
  static plan::Problem with(plan::Problem problem, Change change) {
    change(problem);
    return problem;
  }
  static std::string chosen(const plan::Problem& problem, const cuda::DeviceProperties& device) {
    plan::Config config;
    EXPECT_TRUE(sm80::portable_family().configure(problem, device, nullptr, &config).ok());
    return std::string(config.kernel);
  }
  static bool can_be_pinned(const plan::Problem& problem, const cuda::DeviceProperties& device) {
    plan::Config config;
    return sm80::portable_family().configure(problem, device, kEven, &config).ok();
  }

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
};

/// Needs no GPU: a device is described by its properties.
TEST_F(EvenTileChoices, AreMadeByShapeAndDevice) {
  for (const plan::Op op : {plan::Op::kGmm, plan::Op::kTgmm}) {
    const plan::Problem asked = problem(op);
    EXPECT_EQ(chosen(asked, hopper), kEven) << to_string(asked);
    EXPECT_NE(chosen(asked, ampere), kEven) << to_string(asked);
    EXPECT_FALSE(can_be_pinned(asked, ampere)) << to_string(asked);
    // Each of these by itself is more than the kernel can do: pinned it is
    // refused.
    const std::array beyond = {
        with(asked, [](auto& p) { p.out.dtype = DType::kF32; }),
        with(asked, [](auto& p) { p.epilogue.has_beta = true; }),
        with(asked, [](auto& p) { p.n = p.rhs.row_stride = p.out.row_stride = 248; }),
        with(asked, [](auto& p) { p.n = p.rhs.row_stride = p.out.row_stride = 1540; }),
        with(asked, [](auto& p) { p.lhs.alignment_bytes = 8; }),
        with(asked, [](auto& p) { p.rhs.row_stride = 1540; }),
        with(asked, [](auto& p) { p.rhs.col_stride = 2; }),
        with(asked, [](auto& p) { p.lhs.row_stride = int64_t{1} << 30; }),
        with(asked, [](auto& p) { p.m = int64_t{1} << 31; }),
        with(asked, [](auto& p) { p.op = plan::Op::kGroupedGemm; })};
    for (const plan::Problem& p : beyond) {
      EXPECT_NE(chosen(p, hopper), kEven) << to_string(p);
      EXPECT_FALSE(can_be_pinned(p, hopper)) << to_string(p);
    }
    // This it can do, but others do it better.
    EXPECT_NE(chosen(with(asked, [](auto& p) { p.average_rows = 100; }), hopper), kEven);
    EXPECT_NE(chosen(with(asked, [](auto& p) { p.num_groups = p.num_local_groups = 4; }), hopper),
              kEven);
  }
}

TEST_F(EvenTileChoices, DependOnTheOp) {
  const plan::Problem forward = problem(plan::Op::kGmm), gradient = problem(plan::Op::kTgmm);
  EXPECT_FALSE(
      can_be_pinned(with(forward, [](auto& p) { p.epilogue.has_row_scale = true; }), hopper));
  EXPECT_FALSE(can_be_pinned(
      with(forward, [](auto& p) { p.epilogue.bias = layout(Placement::kStacked, p.n, p.n); }),
      hopper));
  EXPECT_FALSE(
      can_be_pinned(with(gradient, [](auto& p) { p.k = p.lhs.row_stride = 152; }), hopper));
  EXPECT_TRUE(can_be_pinned(with(forward,
                                 [](auto& p) {
                                   p.k = p.lhs.row_stride = 152;
                                   p.rhs.group_stride = 152 * p.n;
                                 }),
                            hopper));
  EXPECT_FALSE(can_be_pinned(with(gradient, [](auto& p) { p.out.group_stride += 4; }), hopper));
  EXPECT_FALSE(can_be_pinned(with(forward, [](auto& p) { p.rhs.group_stride += 4; }), hopper));
  // Weights stored [n, k], and column by column.
  const plan::Problem transposed = with(forward, [](auto& p) {
    p.transpose_rhs = true;
    p.rhs.row_stride = p.k;
  });
  EXPECT_EQ(chosen(transposed, hopper), kEven);
  const plan::Problem turned = with(forward, [](auto& p) {
    p.rhs.row_stride = 1;
    p.rhs.col_stride = p.k;
  });
  EXPECT_EQ(chosen(turned, hopper), kEven);
}

}  // namespace
}  // namespace cadre::tests
