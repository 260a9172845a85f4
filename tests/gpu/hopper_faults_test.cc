// Bad sizes on the device through every Hopper kernel, on few multiprocessors: nothing outside is
// touched, and out has the bits that the portable kernels give for the sizes as the contract counts
// them. The bad group lies among the first or beyond a warp's 32.
#include <numeric>

#include "tests/gpu/hopper_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 700, kK = 136, kN = 264, kGroups = 40;

struct BadGroup {
  const char* name;
  DType dtype;
  size_t group;
  int64_t size;  ///< or its end
  const char* message;
  GroupSizesKind kind = GroupSizesKind::kSizes;
};

constexpr auto kEnds = GroupSizesKind::kEnds;

const std::vector<BadGroup> kBadGroups = {
    {"negative beyond 32", DType::kI32, 35, -1, "negative"},
    {"most negative", DType::kI64, 3, INT64_MIN, "negative"},
    {"above m beyond 32", DType::kI32, 33, INT32_MAX, "above m"},
    {"above m by one, last", DType::kI64, 39, 34, "above m"},
    {"huge first", DType::kI64, 0, INT64_MAX, "above m"},
    {"wraps around in 32 bits", DType::kU32, 34, UINT32_MAX, "above m"},
    {"end below the one before", DType::kI32, 3, 5, "one before", kEnds},
    {"negative end beyond 32", DType::kI32, 35, -1, "one before", kEnds},
    {"first end of the second 32 decreases", DType::kI64, 32, 300, "one before", kEnds},
    {"most negative end", DType::kI64, 3, INT64_MIN, "above m", kEnds},
    {"end above m beyond 32", DType::kI32, 33, 701, "above m", kEnds},
    {"first end huge", DType::kI64, 0, INT64_MAX, "above m", kEnds},
};

/// A group of several tiles, empty ones and short ones: 680 of 700 rows.
std::vector<int64_t> good_sizes() {
  std::vector<int64_t> sizes(kGroups);
  sizes[0] = 300;
  for (size_t i = 1; i < sizes.size(); ++i) sizes[i] = static_cast<int64_t>(i * 7 % 20);
  return sizes;
}

class HopperFaults : public HopperKernelTest {
 protected:
  HopperFaults() : HopperKernelTest({kM, kK, kN, kGroups}) {}

  /// `call(context, out, sizes, options)` on every bad vector of sizes; `out` starts the same.
  template <typename Call>
  void expect_faults(GpuArray& out, GpuArray& expected, const Call& call) {
    for (const BadGroup& bad : kBadGroups) {
      std::vector<int64_t> sizes = good_sizes();
      GpuArray given(bad.dtype, {kGroups});
      GpuArray counted(DType::kI64, {kGroups});
      std::vector<int64_t> values = sizes;
      if (bad.kind == kEnds) std::partial_sum(sizes.begin(), sizes.end(), values.begin());
      values[bad.group] = bad.size;
      given.set(values);
      given.set_kind(bad.kind);
      std::fill(sizes.begin() + static_cast<int64_t>(bad.group), sizes.end(), 0);
      counted.set(sizes);
      out.fill_random(4);
      expected.fill_random(4);

      const Status status = call(context, out, given, pinned());
      ASSERT_TRUE(status.ok()) << bad.name << ": " << status.message();
      const Status met = context.check(kGpu);
      EXPECT_EQ(met.code(), StatusCode::kInvalid) << bad.name;
      EXPECT_NE(met.message().find(bad.message), std::string::npos) << met.message();
      const Status right = call(portable, expected, counted, {});
      ASSERT_TRUE(right.ok()) << bad.name << ": " << right.message();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << bad.name;

      out.download();
      expected.download();
      EXPECT_TRUE(out.same_after(expected)) << bad.name;
      EXPECT_TRUE(out.guards_intact()) << bad.name;
      for (GpuArray* input : {&lhs, &rhs, &rows, &given}) {
        input->download();
        EXPECT_TRUE(input->unchanged()) << bad.name;
      }
    }
  }
};

TEST_P(HopperFaults, BadSizesInGmm) {
  for (const bool accumulate : {false, true}) {
    if (accumulate && !subject().c) continue;
    GpuArray out(DType::kBF16, {kM, kN});
    GpuArray expected(DType::kBF16, {kM, kN});
    expect_faults(
        out, expected,
        [&](Context& on, const GpuArray& to, const GpuArray& sizes, const CallOptions& options) {
          return run_gmm(on, to, sizes, accumulate, options);
        });
  }
}

INSTANTIATE_TEST_SUITE_P(All, HopperFaults, testing::ValuesIn(restricted_names("gmm")), backend_of);

class HopperTgmmFaults : public HopperFaults {};

TEST_P(HopperTgmmFaults, BadSizesInTgmm) {
  for (const bool accumulate : {false, true}) {
    GpuArray out(DType::kF32, {kGroups, kK, kN});
    GpuArray expected(DType::kF32, {kGroups, kK, kN});
    expect_faults(
        out, expected,
        [&](Context& on, const GpuArray& to, const GpuArray& sizes, const CallOptions& options) {
          return run_tgmm(on, to, sizes, accumulate, options);
        });
  }
}

INSTANTIATE_TEST_SUITE_P(All, HopperTgmmFaults, testing::ValuesIn(restricted_names("tgmm")),
                         backend_of);

}  // namespace
}  // namespace cadre::tests
