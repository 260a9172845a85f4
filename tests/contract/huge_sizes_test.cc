// More terms in a sum than 32 bits count: broadcast operands claim them, and hardly any memory is
// used. (Dims beyond 2^48 are refused: bad_input_test.cc.)
#include <gtest/gtest.h>

#include "cadre/cadre.h"

namespace cadre {
namespace {

constexpr int64_t kHuge = (int64_t{1} << 31) + 72;
constexpr int64_t kM = 2, kN = 3;

/// int8, whose sums are exact modulo 2^32.
struct Operands {
  int8_t lhs[kM] = {3, -7};
  int8_t rhs[kN] = {1, 2, -5};
  int32_t out[kM * kN] = {-1, -1, -1, -1, -1, -1};

  void expect_products() const {
    for (int64_t i = 0; i < kM * kN; ++i) {
      const int64_t product = int64_t{lhs[i / kN]} * rhs[i % kN];
      EXPECT_EQ(out[i], static_cast<int32_t>(static_cast<uint32_t>(product * kHuge))) << i;
    }
  }
};

TEST(HugeSizes, TgmmSumsMoreThanTwoToThe31Rows) {
  Operands o;
  Context context;
  const int64_t rows = kHuge;
  const Status status =
      tgmm(context, {.lhs = TensorView::strided(o.lhs, DType::kI8, {kHuge, kM}, {0, 1}),
                     .rhs = TensorView::strided(o.rhs, DType::kI8, {kHuge, kN}, {0, 1}),
                     .group_sizes = {&rows, DType::kI64, 1},
                     .out = TensorView::contiguous(o.out, DType::kI32, {1, kM, kN})});
  ASSERT_TRUE(status.ok()) << status.message();
  o.expect_products();
}

TEST(HugeSizes, GmmSumsMoreThanTwoToThe31Terms) {
  Operands o;
  Context context;
  const int64_t rows = kM;
  const Status status =
      gmm(context, {.lhs = TensorView::strided(o.lhs, DType::kI8, {kM, kHuge}, {1, 0}),
                    .rhs = TensorView::strided(o.rhs, DType::kI8, {1, kHuge, kN}, {0, 0, 1}),
                    .group_sizes = {&rows, DType::kI64, 1},
                    .out = TensorView::contiguous(o.out, DType::kI32, {kM, kN})});
  ASSERT_TRUE(status.ok()) << status.message();
  o.expect_products();
}

TEST(HugeSizes, GroupedGemmSumsMoreThanTwoToThe31Terms) {
  Operands o;
  Context context;
  const Status status =
      grouped_gemm(context, {.a = TensorView::strided(o.lhs, DType::kI8, {1, kM, kHuge}, {0, 1, 0}),
                             .b = TensorView::strided(o.rhs, DType::kI8, {1, kHuge, kN}, {0, 0, 1}),
                             .d = TensorView::contiguous(o.out, DType::kI32, {1, kM, kN})});
  ASSERT_TRUE(status.ok()) << status.message();
  o.expect_products();
}

}  // namespace
}  // namespace cadre
