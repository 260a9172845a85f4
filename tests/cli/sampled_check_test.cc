// The demo's check can fail: each planted fault in a result is found, and a right result passes.
#include "sampled_check.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "owned_tensor.h"

namespace cadre::cli {
namespace {

constexpr int64_t kRows = 40;  // 36 in groups, 4 tail
constexpr int64_t kInner = 24;
constexpr int64_t kOuter = 17;
const int32_t kSizes[] = {10, 0, 26};

class SampledCheck : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(lhs_.make(DType::kF32, {kRows, kInner}, {}).ok());
    ASSERT_TRUE(rhs_.make(DType::kF32, {3, kInner, kOuter}, {}).ok());
    ASSERT_TRUE(dy_.make(DType::kF32, {kRows, kOuter}, {}).ok());
    ASSERT_TRUE(bias_.make(DType::kF32, {3, kOuter}, {}).ok());
    ASSERT_TRUE(out_.make(DType::kF32, {kRows, kOuter}, {}).ok());
    ASSERT_TRUE(grad_.make(DType::kF32, {3, kInner, kOuter}, {}).ok());
    lhs_.fill_random(1, 1);
    rhs_.fill_random(2, 1);
    dy_.fill_random(3, 1);
    bias_.fill_random(4, 1);
    grad_.fill_random(5, 1);
    out_.fill_nan();
  }

  GmmArgs gmm_args() const {
    return {.lhs = lhs_.view(Side::kHost),
            .rhs = rhs_.view(Side::kHost),
            .group_sizes = {kSizes, DType::kI32, 3},
            .out = out_.view(Side::kHost),
            .bias = GroupedTensor::vectors(bias_.view(Side::kHost))};
  }
  CheckResult check_out() {
    CheckResult result;
    EXPECT_TRUE(check_gmm(reference_, gmm_args(), &result).ok());
    return result;
  }

  Context reference_{ContextOptions{.backend = "reference"}};
  OwnedTensor lhs_, rhs_, dy_, bias_, out_, grad_;
};

TEST_F(SampledCheck, GmmPassesWhenRight) {
  ASSERT_TRUE(gmm(reference_, gmm_args()).ok());
  const CheckResult result = check_out();
  EXPECT_TRUE(result.passed()) << result.where << " ratio " << result.ratio;
  EXPECT_GT(result.elements, 500);
}

TEST_F(SampledCheck, GmmFindsEveryPlantedFault) {
  ASSERT_TRUE(gmm(reference_, gmm_args()).ok());
  const double kept = out_.get(10 * kOuter);
  const double faults[] = {kept + 1e-3, NAN, INFINITY, 0.0};
  for (const double fault : faults) {  // the first row of the last group
    out_.set(10 * kOuter, fault);
    EXPECT_FALSE(check_out().passed()) << fault;
    EXPECT_EQ(check_out().where, "[10, 0]");
  }
  out_.set(10 * kOuter, kept);
  EXPECT_TRUE(check_out().passed());
  for (const double fault : {1e-30, static_cast<double>(NAN)}) {  // the tail must be exactly zero
    out_.set(36 * kOuter, fault);
    EXPECT_FALSE(check_out().passed()) << fault;
  }
}

TEST_F(SampledCheck, GmmFindsAnUnwrittenResult) { EXPECT_FALSE(check_out().passed()); }

TEST_F(SampledCheck, TgmmAddsToWhatWasThere) {
  const TgmmArgs args{.lhs = lhs_.view(Side::kHost),
                      .rhs = dy_.view(Side::kHost),
                      .group_sizes = {kSizes, DType::kI32, 3},
                      .out = grad_.view(Side::kHost),
                      .accumulate = true};
  const TgmmCheck check(args);
  ASSERT_TRUE(tgmm(reference_, args).ok());
  CheckResult right;
  ASSERT_TRUE(check.check(reference_, &right).ok());
  EXPECT_TRUE(right.passed()) << right.where << " ratio " << right.ratio;

  grad_.set(kInner * kOuter, grad_.get(kInner * kOuter) + 1e-3);  // the empty group's matrix
  CheckResult wrong;
  ASSERT_TRUE(check.check(reference_, &wrong).ok());
  EXPECT_FALSE(wrong.passed());
  EXPECT_EQ(wrong.where, "[1, 0, 0]");
}

TEST_F(SampledCheck, BiasGradFindsAPlantedFault) {
  const BiasGradArgs args{.dy = dy_.view(Side::kHost),
                          .group_sizes = {kSizes, DType::kI32, 3},
                          .dbias = GroupedTensor::vectors(bias_.view(Side::kHost))};
  ASSERT_TRUE(bias_grad(reference_, args).ok());
  CheckResult right;
  ASSERT_TRUE(check_bias_grad(reference_, args, &right).ok());
  EXPECT_TRUE(right.passed());
  bias_.set(2 * kOuter, bias_.get(2 * kOuter) + 1e-3);
  CheckResult wrong;
  ASSERT_TRUE(check_bias_grad(reference_, args, &wrong).ok());
  EXPECT_FALSE(wrong.passed());
}

}  // namespace
}  // namespace cadre::cli
