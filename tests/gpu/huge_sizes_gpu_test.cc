// Sums of more than 2^31 rows, on operands whose rows are all the same one. About a minute each on
// an H200: one block adds them all.
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kHuge = (int64_t{1} << 31) + 72;
constexpr int64_t kK = 8, kN = 16;

class HugeSizesGpu : public GpuTest {
 protected:
  /// All rows are the first one of `lhs` and `rhs`.
  static Status sum_of_equal_rows(const GpuArray& lhs, const GpuArray& rhs, const GpuArray& out) {
    Context context(BackendUnderTest::options_for("cuda"));
    const int64_t rows = kHuge;
    return tgmm(context,
                {.lhs = TensorView::strided(lhs.data(), lhs.dtype(), {kHuge, kK}, {0, 1}, kGpu),
                 .rhs = TensorView::strided(rhs.data(), rhs.dtype(), {kHuge, kN}, {0, 1}, kGpu),
                 .group_sizes = {&rows, DType::kI64, 1},
                 .out = out.view()});
  }
};

TEST_F(HugeSizesGpu, TgmmOfInt8IsExact) {
  GpuArray lhs(DType::kI8, {1, kK});
  GpuArray rhs(DType::kI8, {1, kN});
  GpuArray out(DType::kI32, {1, kK, kN});
  std::vector<int64_t> left(kK);
  std::vector<int64_t> right(kN);
  for (int64_t i = 0; i < kK; ++i) left[static_cast<size_t>(i)] = 3 * i - 7;
  for (int64_t i = 0; i < kN; ++i) right[static_cast<size_t>(i)] = 5 - 2 * i;
  lhs.set(left);
  rhs.set(right);
  const Status status = sum_of_equal_rows(lhs, rhs, out);
  ASSERT_TRUE(status.ok()) << status.message();
  out.download();
  for (int64_t i = 0; i < kK * kN; ++i) {
    const auto terms = static_cast<uint32_t>(kHuge * left[static_cast<size_t>(i / kN)] *
                                             right[static_cast<size_t>(i % kN)]);
    ASSERT_EQ(out.after(i), static_cast<double>(static_cast<int32_t>(terms))) << i;
  }
}

// In f32 a sum of ones stops to grow at 2^24 or, where sixteen are added at a time, at 2^28.
TEST_F(HugeSizesGpu, TgmmOfBf16IsNotEmpty) {
  GpuArray lhs(DType::kBF16, {1, kK});
  GpuArray rhs(DType::kBF16, {1, kN});
  GpuArray out(DType::kF32, {1, kK, kN});
  for (int64_t i = 0; i < kK; ++i) lhs.store(i, 1);
  for (int64_t i = 0; i < kN; ++i) rhs.store(i, 1);
  lhs.upload();
  rhs.upload();
  const Status status = sum_of_equal_rows(lhs, rhs, out);
  ASSERT_TRUE(status.ok()) << status.message();
  out.download();
  for (int64_t i = 0; i < kK * kN; ++i) {
    ASSERT_GE(out.after(i), static_cast<double>(1 << 24)) << i;
    ASSERT_LE(out.after(i), static_cast<double>(kHuge)) << i;
  }
}

}  // namespace
}  // namespace cadre::tests
