// The engine behind the contract: it waits for the device, uses no constant operands, samples large
// products as promised, and its tolerance is neither too wide nor too narrow.
#include "verify/check_case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "tests/support/subjects.h"
#include "verify/oracle.h"
#include "verify/tolerance.h"

namespace cadre::verify {
namespace {

/// Host memory that answers a download with zeros until finish() has been called, as a device whose
/// kernel still runs might.
class UnfinishedMemory final : public Memory {
 public:
  Device device() const override { return {}; }
  void* allocate(size_t size_bytes) override { return host_memory().allocate(size_bytes); }
  void release(void* data) override { host_memory().release(data); }
  void upload(void* to, const void* from, size_t size_bytes) override {
    finished_ = false;
    std::memcpy(to, from, size_bytes);
  }
  void download(void* to, const void* from, size_t size_bytes) override {
    ++(finished_ ? late_downloads_ : early_downloads_);
    if (finished_) {
      std::memcpy(to, from, size_bytes);
    } else {
      std::memset(to, 0, size_bytes);
    }
  }
  Status finish(Context&) override {
    finished_ = true;
    return {};
  }

  int early_downloads_ = 0;
  int late_downloads_ = 0;

 private:
  bool finished_ = false;
};

Case small_case() {
  Case c;
  c.m = 9;
  c.k = 6;
  c.n = 7;
  c.group_sizes = {4, 0, 3};
  c.lhs_layout.form = c.out_layout.form = Placement::kRows;
  return c;
}

TEST(CheckCase, WaitsForTheDeviceBeforeItCompares) {
  const tests::BackendUnderTest backend("reference");
  UnfinishedMemory memory;
  const Subject subject{backend.subject().context, memory};
  tests::expect_none(check_case(subject, small_case()));
  EXPECT_GT(memory.late_downloads_, 0);
  EXPECT_EQ(memory.early_downloads_, 0);
}

TEST(CheckCase, LargeProductsAreSampled) {
  Case c = small_case();
  c.k = 64;
  c.n = 300;
  c.group_sizes = {200, 0, 1, 57};
  c.m = 260;  // 4.95 million multiplications
  const tests::BackendUnderTest backend("reference");
  tests::expect_none(check_case(backend.subject(), c));
  Case nan = c;  // a wrong expectation anywhere in a group's first row would be seen
  nan.nan_group = 2;
  tests::expect_none(check_case(backend.subject(), nan));
}

TEST(RandomCases, OperandsAreNeverConstant) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const Case c = random_case(seed);
    const CaseData data = make_data(c, host_memory());
    std::set<double> values;
    int64_t live = 0;
    for (size_t matrix = 0; matrix < data.lhs->shapes().size(); ++matrix) {
      const MatrixShape shape = data.lhs->shapes()[matrix];
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t col = 0; col < shape.cols; ++col) {
          const double value = data.lhs->before(static_cast<int64_t>(matrix), row, col);
          if (std::isnan(value)) continue;
          ++live;
          values.insert(value);
        }
      }
    }
    // A broadcast of one row or column has no more values than that.
    const bool broadcast = c.lhs_layout.broadcast_rows || c.lhs_layout.broadcast_cols;
    if (live > 8 && c.lhs != DType::kI8 && !broadcast) {
      EXPECT_GT(values.size(), 5u) << seed;
    }
  }
}

TEST(Tolerance, IsTheIntervalOfRoundedBounds) {
  const Expected exact{1.0, 0};
  EXPECT_TRUE(agrees(DType::kF32, exact, 1.0));
  EXPECT_FALSE(agrees(DType::kF32, exact, 1.0 + 0x1p-23));
  const Expected between{1.0 + 0x1p-9, 0};  // a quarter of a bf16 unit above 1
  EXPECT_TRUE(agrees(DType::kBF16, between, 1.0));
  EXPECT_FALSE(agrees(DType::kBF16, between, 1.0 + 0x1p-7));
  const Expected near_tie{1.0 + 0x1p-8, 0x1p-20};  // a tie, known up to 2^-20
  EXPECT_TRUE(agrees(DType::kBF16, near_tie, 1.0));
  EXPECT_TRUE(agrees(DType::kBF16, near_tie, 1.0 + 0x1p-7));
  EXPECT_FALSE(agrees(DType::kBF16, near_tie, 1.0 - 0x1p-8));
}

TEST(Tolerance, NonFiniteResultsMustMatch) {
  const double nan = std::nan("");
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(agrees(DType::kF32, {nan, 0}, nan));
  EXPECT_TRUE(agrees(DType::kF32, {nan, nan}, nan));
  EXPECT_FALSE(agrees(DType::kF32, {nan, 0}, 0));
  EXPECT_FALSE(agrees(DType::kF32, {0, 1}, nan));
  EXPECT_FALSE(agrees(DType::kF32, {0, 1}, infinity));
  EXPECT_TRUE(agrees(DType::kF16, {70000, 1}, infinity));
  EXPECT_FALSE(agrees(DType::kF16, {65000, 1}, infinity));
  EXPECT_TRUE(agrees(DType::kF16, {65519.9, 1}, infinity));  // the bound reaches the limit
  EXPECT_TRUE(agrees(DType::kF16, {65519.9, 1}, 65504));
}

TEST(Tolerance, IntegersAreExact) {
  EXPECT_TRUE(agrees(DType::kI32, {16777217, 0}, 16777217));
  EXPECT_FALSE(agrees(DType::kI32, {16777217, 0}, 16777216));
  EXPECT_GT(severity(DType::kI32, {16777217, 0}, 16777216), 0);
}

TEST(Tolerance, HoldsForPlainF32SumsAndNotForLessCare) {
  // Sums in f32, forwards: within the bound. The same with one term left out: far outside.
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    const int64_t depth = random.between(1, 600);
    double exact = 0, magnitude = 0;
    float sum = 0, last = 0;
    for (int64_t i = 0; i < depth; ++i) {
      const auto a = static_cast<float>(random.uniform(-1, 1));
      const auto b = static_cast<float>(random.uniform(-1, 1));
      exact += static_cast<double>(a) * static_cast<double>(b);
      magnitude += std::fabs(static_cast<double>(a) * static_cast<double>(b));
      last = a * b;
      sum += last;
    }
    const Expected expected{exact, rounding_bound(DType::kF32, depth, magnitude)};
    EXPECT_TRUE(agrees(DType::kF32, expected, static_cast<double>(sum)));
    if (std::fabs(last) < 0.05f) continue;
    EXPECT_FALSE(agrees(DType::kF32, expected, static_cast<double>(sum - last))) << depth;
  }
}

}  // namespace
}  // namespace cadre::verify
