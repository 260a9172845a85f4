// Bad sizes and row indices on the device through every Hopper kernel, on few multiprocessors:
// nothing outside is touched, and out has the bits that the portable kernels give for the sizes as
// the contract counts them, or for rows of zeros. The bad group lies among the first or beyond a
// warp's 32.
#include <numeric>

#include "core/text.h"
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

      expect_same(out, expected, {&given}, bad.name);
    }
  }

  /// `call(context, out, rows, options)` with every bad row index among good ones; the portable
  /// kernels get -1 in its place.
  template <typename Call>
  void expect_row_faults(GpuArray& out, GpuArray& expected, const Call& call) {
    for (const DType dtype : {DType::kI32, DType::kI64}) {
      GpuArray given(dtype, {kM});
      GpuArray counted(dtype, {kM});
      counted.set(rows_with(-1, kM, kM));
      for (const int64_t bad : bad_rows(dtype, kM)) {
        const std::string what = text(name_of(dtype), " row index ", bad);
        given.set(rows_with(bad, kM, kM));
        out.upload();
        expected.upload();

        const Status status = call(context, out, given, pinned());
        ASSERT_TRUE(status.ok()) << what << ": " << status.message();
        const Status met = context.check(kGpu);
        EXPECT_EQ(met.code(), StatusCode::kInvalid) << what;
        EXPECT_NE(met.message().find("row index"), std::string::npos) << met.message();
        const Status right = call(portable, expected, counted, CallOptions{});
        ASSERT_TRUE(right.ok()) << what << ": " << right.message();
        const Status none = portable.check(kGpu);
        EXPECT_TRUE(none.ok()) << what << ": " << none.message();
        expect_same(out, expected, {&given}, what);
      }
    }
  }

  void expect_same(GpuArray& out, GpuArray& expected, std::vector<GpuArray*> inputs,
                   const std::string& what) {
    out.download();
    expected.download();
    EXPECT_TRUE(out.same_after(expected)) << what;
    EXPECT_TRUE(out.guards_intact()) << what;
    inputs.insert(inputs.end(), {&lhs, &rhs, &rows});
    for (GpuArray* input : inputs) {
      input->download();
      EXPECT_TRUE(input->unchanged()) << what;
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

TEST_P(HopperFaults, BadRowIndicesInGmm) {
  GpuArray sizes(DType::kI64, {kGroups});
  sizes.set(good_sizes());
  GpuArray out(DType::kBF16, {kM, kN});
  GpuArray expected(DType::kBF16, {kM, kN});
  expect_row_faults(
      out, expected,
      [&](Context& on, const GpuArray& to, const GpuArray& index, const CallOptions& options) {
        return gmm(on, {.lhs = lhs.view(),
                        .rhs = rhs.view(),
                        .group_sizes = sizes.sizes(),
                        .out = to.view(),
                        .lhs_rows = index.view(),
                        .options = options});
      });
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

TEST_P(HopperTgmmFaults, BadRowIndicesInTgmm) {
  GpuArray sizes(DType::kI64, {kGroups});
  sizes.set(good_sizes());
  GpuArray out(DType::kF32, {kGroups, kK, kN});
  GpuArray expected(DType::kF32, {kGroups, kK, kN});
  for (const bool of_lhs : {true, false}) {
    expect_row_faults(
        out, expected,
        [&](Context& on, const GpuArray& to, const GpuArray& index, const CallOptions& options) {
          return tgmm(on, {.lhs = lhs.view(),
                           .rhs = rows.view(),
                           .group_sizes = sizes.sizes(),
                           .out = to.view(),
                           .lhs_rows = of_lhs ? index.view() : TensorView{},
                           .rhs_rows = of_lhs ? TensorView{} : index.view(),
                           .options = options});
        });
  }
}

INSTANTIATE_TEST_SUITE_P(All, HopperTgmmFaults, testing::ValuesIn(restricted_names("tgmm")),
                         backend_of);

}  // namespace
}  // namespace cadre::tests
