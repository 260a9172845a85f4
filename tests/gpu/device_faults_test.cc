// Bad sizes, offsets and row indices on the device: nothing outside is touched, good groups are
// right, everything else counts as tail, a bad row as zeros, and check() tells once.
#include <cmath>
#include <cstring>

#include "core/text.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/support/scoped_environment.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 200;
constexpr int64_t kK = 40;
constexpr int64_t kN = 24;
constexpr int64_t kGroups = 4;
constexpr double kTolerance = 1e-4;

struct BadSizes {
  const char* name;
  DType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> counted;  ///< as the contract reads them
  const char* message;
  GroupSizesKind kind = GroupSizesKind::kSizes;
};

constexpr auto kEnds = GroupSizesKind::kEnds;

const std::vector<BadSizes> kBadSizes = {
    {"negative in the middle", DType::kI64, {50, -1, 60, 10}, {50, 0, 0, 0}, "negative"},
    {"negative first", DType::kI64, {-5, 1, 1, 1}, {0, 0, 0, 0}, "negative"},
    {"most negative", DType::kI64, {10, INT64_MIN, 10, 10}, {10, 0, 0, 0}, "negative"},
    {"sum above m", DType::kI64, {100, 90, 11, 1}, {100, 90, 0, 0}, "above m"},
    {"huge", DType::kI64, {10, INT64_MAX, INT64_MAX, 1}, {10, 0, 0, 0}, "above m"},
    {"sums that wrap around", DType::kI64, {1, INT64_MAX, 1, INT64_MAX}, {1, 0, 0, 0}, "above m"},
    {"last one too many", DType::kI64, {50, 50, 50, 51}, {50, 50, 50, 0}, "above m"},
    {"negative i32", DType::kI32, {50, 60, -1, 10}, {50, 60, 0, 0}, "negative"},
    {"negative i8", DType::kI8, {50, 60, -1, 10}, {50, 60, 0, 0}, "negative"},
    {"negative i16", DType::kI16, {50, 60, INT16_MIN, 10}, {50, 60, 0, 0}, "negative"},
    {"a u64 above 2^63", DType::kU64, {50, 60, -1, 10}, {50, 60, 0, 0}, "above 2^63"},
    {"most negative i32", DType::kI32, {10, INT32_MIN, 10, 10}, {10, 0, 0, 0}, "negative"},
    {"i32 sums above 2^31", DType::kI32, {10, INT32_MAX, INT32_MAX, 9}, {10, 0, 0, 0}, "above m"},
    {"sum above m in i32", DType::kI32, {100, 90, 11, 1}, {100, 90, 0, 0}, "above m"},
    {"u32 above 2^31", DType::kU32, {7, 20, UINT32_MAX, 1}, {7, 20, 0, 0}, "above m"},
    {"u32 sums that wrap around", DType::kU32, {5, UINT32_MAX - 4, 5, 5}, {5, 0, 0, 0}, "above m"},
    {"ends that decrease", DType::kI64, {50, 49, 60, 70}, {50, 0, 0, 0}, "one before", kEnds},
    {"negative end", DType::kI32, {-5, 1, 2, 3}, {0, 0, 0, 0}, "one before", kEnds},
    {"most negative end", DType::kI64, {9, INT64_MIN, 20, 30}, {9, 0, 0, 0}, "above m", kEnds},
    {"end above m", DType::kI64, {100, 190, 201, 202}, {100, 90, 0, 0}, "above m", kEnds},
    {"last end above m", DType::kI32, {50, 100, 150, 201}, {50, 50, 50, 0}, "above m", kEnds},
    {"huge end", DType::kI64, {10, INT64_MAX, 20, 30}, {10, 0, 0, 0}, "above m", kEnds},
    {"i8 ends that decrease", DType::kI8, {50, 110, 100, 120}, {50, 60, 0, 0}, "one before", kEnds},
    {"u16 end above m", DType::kU16, {7, 27, UINT16_MAX, 28}, {7, 20, 0, 0}, "above m", kEnds},
    {"an end above 2^63", DType::kU64, {50, 110, -1, 120}, {50, 60, 0, 0}, "above 2^63", kEnds},
};

class DeviceFaults : public GpuBackendTest {
 protected:
  DeviceFaults() : reference(reference_context()) {}

  void expect_fault(const char* message, const std::string& what) {
    const Status met = context.check(kGpu);
    EXPECT_EQ(met.code(), StatusCode::kInvalid) << what;
    EXPECT_NE(met.message().find(message), std::string::npos) << what << ": " << met.message();
    EXPECT_TRUE(context.check(kGpu).ok()) << what << ": reported twice";
  }

  /// Inputs, and the canaries around them and around outputs.
  static void expect_kept(std::initializer_list<GpuArray*> inputs,
                          std::initializer_list<GpuArray*> outputs, const std::string& what) {
    for (GpuArray* array : inputs) {
      array->download();
      EXPECT_TRUE(array->unchanged()) << what;
    }
    for (GpuArray* array : outputs) {
      array->download();
      EXPECT_TRUE(array->guards_intact()) << what;
    }
  }

  Context reference;
};

TEST_P(DeviceFaults, BadSizesInGmm) {
  for (const BadSizes& bad : kBadSizes) {
    GpuArray lhs(DType::kBF16, {kM, kK});
    GpuArray rhs(DType::kBF16, {kGroups, kK, kN});
    GpuArray out(DType::kF32, {kM, kN});
    GpuArray sizes(bad.dtype, {kGroups});
    lhs.fill_random(1);
    rhs.fill_random(2);
    sizes.set(bad.sizes);
    sizes.set_kind(bad.kind);
    const Status status = gmm(
        context,
        {.lhs = lhs.view(), .rhs = rhs.view(), .group_sizes = sizes.sizes(), .out = out.view()});
    ASSERT_TRUE(status.ok()) << status.message();
    expect_fault(bad.message, bad.name);
    expect_kept({&lhs, &rhs, &sizes}, {&out}, bad.name);
    ASSERT_TRUE(gmm(reference, {.lhs = lhs.host_view(),
                                .rhs = rhs.host_view(),
                                .group_sizes = {bad.counted.data(), DType::kI64, kGroups},
                                .out = out.host_view()})
                    .ok());
    expect_close(out, out, kTolerance, bad.name);
  }
}

TEST_P(DeviceFaults, BadSizesInTgmm) {
  for (const BadSizes& bad : kBadSizes) {
    GpuArray lhs(DType::kBF16, {kM, kK});
    GpuArray rhs(DType::kBF16, {kM, kN});
    GpuArray out(DType::kF32, {kGroups, kK, kN});
    GpuArray sizes(bad.dtype, {kGroups});
    lhs.fill_random(1);
    rhs.fill_random(2);
    sizes.set(bad.sizes);
    sizes.set_kind(bad.kind);
    const Status status = tgmm(
        context,
        {.lhs = lhs.view(), .rhs = rhs.view(), .group_sizes = sizes.sizes(), .out = out.view()});
    ASSERT_TRUE(status.ok()) << status.message();
    expect_fault(bad.message, bad.name);
    expect_kept({&lhs, &rhs, &sizes}, {&out}, bad.name);
    ASSERT_TRUE(tgmm(reference, {.lhs = lhs.host_view(),
                                 .rhs = rhs.host_view(),
                                 .group_sizes = {bad.counted.data(), DType::kI64, kGroups},
                                 .out = out.host_view()})
                    .ok());
    expect_close(out, out, kTolerance, bad.name);
  }
}

constexpr int64_t kRowsInMemory = 30;
const std::vector<int64_t> kGoodSizes = {50, 60, 0, 70};

TEST_P(DeviceFaults, BadRowIndicesInGmm) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const DType index : {DType::kI32, DType::kI64}) {
      for (const int64_t bad : bad_rows(index, kRowsInMemory)) {
        GpuArray lhs(dtype, {kRowsInMemory, kK}), rhs(dtype, {kGroups, kK, kN});
        GpuArray out(DType::kF32, {kM, kN});
        GpuArray sizes(DType::kI64, {kGroups}), rows(index, {kM}), counted(DType::kI64, {kM});
        lhs.fill_random(1);
        rhs.fill_random(2);
        sizes.set(kGoodSizes);
        rows.set(rows_with(bad, kM, kRowsInMemory));
        counted.set(rows_with(-1, kM, kRowsInMemory));
        const std::string what = text(name_of(dtype), ", ", name_of(index), " row index ", bad);
        const Status status = gmm(context, {.lhs = lhs.view(),
                                            .rhs = rhs.view(),
                                            .group_sizes = sizes.sizes(),
                                            .out = out.view(),
                                            .lhs_rows = rows.view()});
        ASSERT_TRUE(status.ok()) << what << ": " << status.message();
        expect_fault("row index", what);
        expect_kept({&lhs, &rhs, &sizes, &rows}, {&out}, what);
        ASSERT_TRUE(gmm(reference, {.lhs = lhs.host_view(),
                                    .rhs = rhs.host_view(),
                                    .group_sizes = sizes.host_sizes(),
                                    .out = out.host_view(),
                                    .lhs_rows = counted.host_view()})
                        .ok());
        expect_close(out, out, kTolerance, what);
        for (int64_t i = 3 * kN; i < 4 * kN; ++i) ASSERT_EQ(out.after(i), 0.0) << what;
      }
    }
  }
}

/// tgmm with a bad index of one operand, of rows that come 16 bytes at a time or don't.
struct BadTgmm {
  DType dtype;
  int64_t k;
  bool of_lhs;
  DType index;
};

std::vector<BadTgmm> bad_tgmms() {
  std::vector<BadTgmm> all;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t k : {kK, kK - 3}) {
      for (const bool of_lhs : {true, false}) {
        for (const DType index : {DType::kI32, DType::kI64}) {
          all.push_back({dtype, k, of_lhs, index});
        }
      }
    }
  }
  return all;
}

TEST_P(DeviceFaults, BadRowIndicesInTgmm) {
  for (const auto& [dtype, k, of_lhs, index] : bad_tgmms()) {
    for (const int64_t bad : bad_rows(index, kRowsInMemory)) {
      // The other operand's rows lie as they are, or by an index without faults.
      const bool both = bad < 0;
      GpuArray lhs(dtype, {of_lhs || both ? kRowsInMemory : kM, k});
      GpuArray rhs(dtype, {!of_lhs || both ? kRowsInMemory : kM, kN});
      GpuArray out(DType::kF32, {kGroups, k, kN});
      GpuArray sizes(DType::kI64, {kGroups}), rows(index, {kM}), counted(DType::kI64, {kM});
      lhs.fill_random(1);
      rhs.fill_random(2);
      sizes.set(kGoodSizes);
      rows.set(rows_with(bad, kM, kRowsInMemory));
      counted.set(rows_with(-1, kM, kRowsInMemory));
      const std::string what = text(name_of(dtype), " k ", k, of_lhs ? ", lhs, " : ", rhs, ",
                                    name_of(index), " row index ", bad);
      const TensorView other = both ? counted.view() : TensorView{};
      const Status status = tgmm(context, {.lhs = lhs.view(),
                                           .rhs = rhs.view(),
                                           .group_sizes = sizes.sizes(),
                                           .out = out.view(),
                                           .lhs_rows = of_lhs ? rows.view() : other,
                                           .rhs_rows = of_lhs ? other : rows.view()});
      ASSERT_TRUE(status.ok()) << what << ": " << status.message();
      expect_fault("row index", what);
      expect_kept({&lhs, &rhs, &sizes, &rows, &counted}, {&out}, what);
      const TensorView host = counted.host_view();
      ASSERT_TRUE(tgmm(reference, {.lhs = lhs.host_view(),
                                   .rhs = rhs.host_view(),
                                   .group_sizes = sizes.host_sizes(),
                                   .out = out.host_view(),
                                   .lhs_rows = of_lhs || both ? host : TensorView{},
                                   .rhs_rows = !of_lhs || both ? host : TensorView{}})
                      .ok());
      expect_close(out, out, kTolerance, what);
    }
  }
}

TEST_P(DeviceFaults, BadSizesInBiasGrad) {
  for (const BadSizes& bad : kBadSizes) {
    GpuArray dy(DType::kF32, {kM, kN});
    GpuArray dbias(DType::kF32, {kGroups, kN});
    GpuArray bias(DType::kF32, {kGroups, kN});
    GpuArray dbias_scale(DType::kF32, {kM});
    GpuArray sizes(bad.dtype, {kGroups});
    dy.fill_random(1);
    bias.fill_random(2);
    sizes.set(bad.sizes);
    sizes.set_kind(bad.kind);
    const Status status = bias_grad(context, {.dy = dy.view(),
                                              .group_sizes = sizes.sizes(),
                                              .dbias = GroupedTensor::vectors(dbias.view()),
                                              .dbias_scale = dbias_scale.view(),
                                              .bias = GroupedTensor::vectors(bias.view())});
    ASSERT_TRUE(status.ok()) << status.message();
    expect_fault(bad.message, bad.name);
    expect_kept({&dy, &bias, &sizes}, {&dbias, &dbias_scale}, bad.name);
    ASSERT_TRUE(bias_grad(reference, {.dy = dy.host_view(),
                                      .group_sizes = {bad.counted.data(), DType::kI64, kGroups},
                                      .dbias = GroupedTensor::vectors(dbias.host_view()),
                                      .dbias_scale = dbias_scale.host_view(),
                                      .bias = GroupedTensor::vectors(bias.host_view())})
                    .ok());
    expect_close(dbias, dbias, kTolerance, bad.name);
    expect_close(dbias_scale, dbias_scale, kTolerance, bad.name);
  }
}

TEST_P(DeviceFaults, BadGroupOffset) {
  for (int64_t offset : {int64_t{-1}, int64_t{3}, int64_t{1000}, INT64_MAX, INT64_MIN}) {
    constexpr int64_t kLocal = 2;
    GpuArray lhs(DType::kBF16, {kM, kK});
    GpuArray rhs(DType::kBF16, {kLocal, kK, kN});
    GpuArray out(DType::kF32, {kM, kN});
    GpuArray grad(DType::kF32, {kLocal, kK, kK});
    GpuArray sizes(DType::kI64, {kGroups});
    GpuArray device_offset(DType::kI64, {1});
    lhs.fill_random(1);
    rhs.fill_random(2);
    sizes.set({50, 50, 50, 50});
    std::memcpy(device_offset.host_view().data, &offset, sizeof(offset));
    device_offset.upload();
    const GroupOffset group_offset(device_offset.data(), DType::kI64, kGpu);
    const std::string what = "group_offset " + std::to_string(offset);
    ASSERT_TRUE(gmm(context, {.lhs = lhs.view(),
                              .rhs = rhs.view(),
                              .group_sizes = sizes.sizes(),
                              .out = out.view(),
                              .group_offset = group_offset})
                    .ok());
    expect_fault("group_offset", what);
    expect_kept({&lhs, &rhs, &sizes, &device_offset}, {&out}, what);
    for (int64_t i = 0; i < out.count(); ++i) ASSERT_EQ(out.after(i), 0.0) << what;
    ASSERT_TRUE(tgmm(context, {.lhs = lhs.view(),
                               .rhs = lhs.view(),
                               .group_sizes = sizes.sizes(),
                               .out = grad.view(),
                               .group_offset = group_offset})
                    .ok());
    expect_fault("group_offset", what);
    expect_kept({&lhs, &sizes, &device_offset}, {&grad}, what);
    for (int64_t i = 0; i < grad.count(); ++i) ASSERT_EQ(grad.after(i), 0.0) << what;
    GpuArray bias(DType::kBF16, {kLocal, kK}), dbias(DType::kF32, {kLocal, kK});
    GpuArray dbias_scale(DType::kF32, {kM});
    bias.fill_random(3);
    ASSERT_TRUE(bias_grad(context, {.dy = lhs.view(),
                                    .group_sizes = sizes.sizes(),
                                    .dbias = GroupedTensor::vectors(dbias.view()),
                                    .dbias_scale = dbias_scale.view(),
                                    .bias = GroupedTensor::vectors(bias.view()),
                                    .group_offset = group_offset})
                    .ok());
    expect_fault("group_offset", what);
    expect_kept({&lhs, &bias, &sizes, &device_offset}, {&dbias, &dbias_scale}, what);
    for (int64_t i = 0; i < dbias.count(); ++i) ASSERT_EQ(dbias.after(i), 0.0) << what;
    for (int64_t i = 0; i < kM; ++i) ASSERT_EQ(dbias_scale.after(i), 0.0) << what;
  }
}

TEST_P(DeviceFaults, GroupsLargerThanTheMatricesOfAList) {
  GpuArray lhs(DType::kBF16, {kM, kK});
  GpuArray rhs(DType::kBF16, {kGroups, kK, kN});
  GpuArray out(DType::kF32, {kGroups, 10, kN});
  GpuArray sizes(DType::kI64, {kGroups});
  lhs.fill_random(1);
  rhs.fill_random(2);
  sizes.set({10, 11, 5, 100});
  std::vector<void*> pointers;
  for (int64_t i = 0; i < kGroups; ++i) {
    pointers.push_back(static_cast<float*>(out.data()) + i * 10 * kN);
  }
  const TensorView like = TensorView::contiguous(nullptr, DType::kF32, {10, kN}, kGpu);
  const Status status = gmm(context, {.lhs = lhs.view(),
                                      .rhs = rhs.view(),
                                      .group_sizes = sizes.sizes(),
                                      .out = GroupedTensor::list(pointers.data(), kGroups, like)});
  ASSERT_TRUE(status.ok()) << status.message();
  expect_fault("out of range", "list of 10 rows");
  expect_kept({&lhs, &rhs, &sizes}, {&out}, "list of 10 rows");
  // The group before the first bad one is right.
  GpuArray first(DType::kF32, {10, kN});
  const std::vector<int64_t> counted = {10, 0, 0, 0};
  ASSERT_TRUE(gmm(reference, {.lhs = TensorView::contiguous(lhs.host_view().data, DType::kBF16,
                                                            {10, kK}, Device{}),
                              .rhs = rhs.host_view(),
                              .group_sizes = {counted.data(), DType::kI64, kGroups},
                              .out = first.host_view()})
                  .ok());
  for (int64_t i = 0; i < first.count(); ++i) {
    ASSERT_NEAR(out.after(i), first.before(i), kTolerance) << i;
  }
}

TEST_P(DeviceFaults, BadDimsInGroupedGemm) {
  // Group 1's rows are bad in each of these ways; groups 0 and 2 must come out right.
  for (int64_t bad_rows : {int64_t{-3}, int64_t{65}, int64_t{1} << 40, INT64_MIN}) {
    constexpr int64_t kCapacityRows = 64;
    GpuArray a(DType::kBF16, {kCapacityRows, kK});
    GpuArray b(DType::kBF16, {3, kK, kN});
    GpuArray d(DType::kF32, {kCapacityRows, kN});
    GpuArray rows(DType::kI64, {3});
    a.fill_random(1);
    b.fill_random(2);
    std::memcpy(rows.host_view().data, std::vector<int64_t>{20, bad_rows, 30}.data(), 24);
    rows.upload();
    const Extent extent(rows.sizes(), kCapacityRows);
    const Status status = grouped_gemm(
        context,
        {.a = GroupedTensor::packed(a.data(), DType::kBF16, 3, extent, kK, a.count(), kGpu),
         .b = b.view(),
         .d = GroupedTensor::packed(d.data(), DType::kF32, 3, extent, kN, d.count(), kGpu)});
    ASSERT_TRUE(status.ok()) << status.message();
    const std::string what = "rows " + std::to_string(bad_rows);
    expect_fault("out of range", what);
    expect_kept({&a, &b, &rows}, {&d}, what);
    const std::vector<int64_t> counted = {20, 0, 30};
    ASSERT_TRUE(
        grouped_gemm(
            reference,
            {.a = GroupedTensor::packed(a.host_view().data, DType::kBF16, 3,
                                        Extent({counted.data(), DType::kI64, 3}), kK, a.count()),
             .b = b.host_view(),
             .d = GroupedTensor::packed(d.host_view().data, DType::kF32, 3,
                                        Extent({counted.data(), DType::kI64, 3}), kN, d.count())})
            .ok());
    expect_close(d, d, kTolerance, what);
  }
}

TEST_P(DeviceFaults, ForbiddenTailIsReported) {
  GpuArray lhs(DType::kBF16, {kM, kK});
  GpuArray rhs(DType::kBF16, {kGroups, kK, kN});
  GpuArray out(DType::kF32, {kM, kN});
  GpuArray sizes(DType::kI32, {kGroups});
  lhs.fill_random(1);
  rhs.fill_random(2);
  const auto call = [&] {
    return gmm(context, {.lhs = lhs.view(),
                         .rhs = rhs.view(),
                         .group_sizes = sizes.sizes(),
                         .out = out.view(),
                         .tail = Tail::kForbid});
  };
  sizes.set({50, 50, 50, 50});
  ASSERT_TRUE(call().ok());
  EXPECT_TRUE(context.check(kGpu).ok());
  sizes.set({50, 50, 50, 49});
  ASSERT_TRUE(call().ok());
  expect_fault("tail = forbid", "sum of 199");
}

TEST_P(DeviceFaults, CheckVariableReportsAtTheCall) {
  GpuArray lhs(DType::kBF16, {kM, kK});
  GpuArray rhs(DType::kBF16, {kGroups, kK, kN});
  GpuArray out(DType::kF32, {kM, kN});
  GpuArray sizes(DType::kI32, {kGroups});
  lhs.fill_random(1);
  rhs.fill_random(2);
  sizes.set({50, -50, 50, 50});
  const ScopedEnvironment check("CADRE_CHECK", "1");
  const Status status =
      gmm(context,
          {.lhs = lhs.view(), .rhs = rhs.view(), .group_sizes = sizes.sizes(), .out = out.view()});
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_EQ(status.message().find("gmm: "), size_t{0}) << status.message();
  EXPECT_NE(status.message().find("negative"), std::string::npos) << status.message();
}

INSTANTIATE_TEST_SUITE_P(All, DeviceFaults, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
