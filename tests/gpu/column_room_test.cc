// Column-wise copies that are too small for sizes on the device, which no host has seen: the group
// that ends behind a copy or its scales and all groups after it count as empty, and check() tells.
#include <cmath>

#include "core/text.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kK = 136, kN = 72;
constexpr int64_t kGroups = 5;
// In a copy they end at columns 64, 64, 128, 256 and 288.
const std::vector<int64_t> kSizes = {40, 0, 33, 100, 5};
const std::vector<int64_t> kCounted = {40, 0, 33, 0, 0};

struct Room {
  const char* name;
  int64_t lhs_columns, rhs_columns;
  bool all_lines;  ///< of scales; else those of the counted groups
};

// At least as many columns as there are rows: the sum of the sizes is no fault of its own.
constexpr Room kRooms[] = {{"both copies", 192, 192, true},
                           {"lhs", 192, 288, true},
                           {"rhs", 288, 224, true},
                           {"lines of scales", 288, 288, false}};

int64_t lines_of(const std::vector<int64_t>& sizes, int64_t block) {
  int64_t lines = 0;
  for (const int64_t size : sizes) lines += (size + block - 1) / block;
  return lines;
}

/// One operand. Codes are small integers and scales powers of two: sums are exact in f32, in any
/// order, so results are the reference's bits.
struct Copy {
  Copy(ScaleMode scale_mode, int64_t width, int64_t columns, bool all_lines, uint64_t seed)
      : mode(scale_mode),
        data(DType::kE4M3, {width, columns}),
        scales(scale_mode == ScaleMode::kMx ? DType::kE8M0 : DType::kF32,
               scales_shape(scale_mode, width, all_lines)) {
    verify::Random random(seed);
    for (int64_t row = 0; row < width; ++row) {
      int64_t column = 0;
      for (const int64_t size : kSizes) {
        for (int64_t i = 0; i < (size + 31) / 32 * 32; ++i, ++column) {
          if (column >= columns) break;
          data.store(row * columns + column,
                     i < size ? static_cast<double>(random.between(-4, 4)) : 0.0);
        }
      }
    }
    for (int64_t i = 0; i < scales.count(); ++i) {
      scales.store(i, std::ldexp(1.0, static_cast<int>(random.between(-1, 1))));
    }
    data.upload();
    scales.upload();
  }

  static std::vector<int64_t> scales_shape(ScaleMode mode, int64_t width, bool all_lines) {
    if (mode == ScaleMode::kTensor) return {1};
    if (mode == ScaleMode::kRow) return {kGroups, width};
    return {lines_of(all_lines ? kSizes : kCounted, mode == ScaleMode::kMx ? 32 : 128), width};
  }

  ScaledTensor tensor() const {
    return ScaledTensor::column_wise(data.view(), {mode, scales.view()});
  }
  ScaledTensor host_tensor() {
    return ScaledTensor::column_wise(data.host_view(), {mode, scales.host_view()});
  }
  void expect_kept() {
    for (GpuArray* array : {&data, &scales}) {
      array->download();
      EXPECT_TRUE(array->unchanged());
    }
  }

  ScaleMode mode;
  GpuArray data, scales;
};

class ColumnRoom : public GpuBackendTest {
 protected:
  void expect_empty_groups(ScaleMode mode, const Room& room, bool accumulate) {
    SCOPED_TRACE(text(name_of(mode), ", too few: ", room.name, accumulate ? ", accumulate" : ""));
    Copy lhs(mode, kK, room.lhs_columns, room.all_lines, 1);
    Copy rhs(mode, kN, room.rhs_columns, room.all_lines, 2);
    GpuArray out(DType::kF32, {kGroups, kK, kN});
    GpuArray sizes(DType::kI32, {kGroups});
    sizes.set(kSizes);
    if (accumulate) out.fill_random(3);
    const Status status = tgmm(context, {.lhs = lhs.tensor(),
                                         .rhs = rhs.tensor(),
                                         .group_sizes = sizes.sizes(),
                                         .out = out.view(),
                                         .accumulate = accumulate});
    ASSERT_TRUE(status.ok()) << status.message();
    const Status met = context.check(kGpu);
    EXPECT_EQ(met.code(), StatusCode::kInvalid);
    EXPECT_NE(met.message().find("out of range"), std::string::npos) << met.message();
    EXPECT_TRUE(context.check(kGpu).ok()) << "reported twice";
    lhs.expect_kept();
    rhs.expect_kept();
    out.download();
    EXPECT_TRUE(out.guards_intact());
    const Status right = tgmm(reference, {.lhs = lhs.host_tensor(),
                                          .rhs = rhs.host_tensor(),
                                          .group_sizes = {kCounted.data(), DType::kI64, kGroups},
                                          .out = out.host_view(),
                                          .accumulate = accumulate});
    ASSERT_TRUE(right.ok()) << right.message();
    expect_close(out, out, 0, "tgmm");
  }

  Context reference = reference_context();
};

TEST_P(ColumnRoom, GroupsBehindACopyAreEmpty) {
  for (const ScaleMode mode :
       {ScaleMode::kTensor, ScaleMode::kRow, ScaleMode::kBlock128, ScaleMode::kMx}) {
    for (const Room& room : kRooms) {
      const bool of_blocks = mode == ScaleMode::kBlock128 || mode == ScaleMode::kMx;
      if (!room.all_lines && !of_blocks) continue;
      for (const bool accumulate : {false, true}) expect_empty_groups(mode, room, accumulate);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ColumnRoom, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
