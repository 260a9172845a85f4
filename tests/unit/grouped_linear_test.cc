// GroupedLinear against plain loops: both forms of the weights, every mode of the weight gradient,
// and every error. f64 throughout, so results agree to rounding; n and k differ.
#include "cadre/grouped_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kM = 11;  // 9 rows in groups, 2 tail
constexpr int64_t kK = 5;
constexpr int64_t kN = 7;
constexpr int64_t kGroups = 3;
const std::vector<int32_t> kSplits = {4, 0, 5};
const double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> values(int64_t count, int seed) {
  std::vector<double> out;
  for (int64_t i = 0; i < count; ++i) {
    out.push_back(std::sin(1.7 * static_cast<double>(i) + 3.1 * seed));
  }
  return out;
}

TensorView view(const std::vector<double>& data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data.data(), DType::kF64, shape);
}

std::vector<void*> pointers(std::vector<double>& data) {
  std::vector<void*> out;
  const auto size = static_cast<int64_t>(data.size()) / kGroups;
  for (int64_t i = 0; i < kGroups; ++i) out.push_back(data.data() + i * size);
  return out;
}

int64_t group_of(int64_t row) {
  int64_t end = 0;
  for (size_t i = 0; i < kSplits.size(); ++i) {
    end += kSplits[i];
    if (row < end) return static_cast<int64_t>(i);
  }
  return -1;
}

size_t at(int64_t index) { return static_cast<size_t>(index); }

enum class Form { kSingle, kList };
enum class Wgrad { kNow, kDelayed, kMainGrad, kDelayedMainGrad };

/// A layer with data, and what plain loops say its results are.
struct Fixture {
  std::vector<double> x = values(kM * kK, 1);
  std::vector<double> weight = values(kGroups * kN * kK, 2);
  std::vector<double> bias = values(kGroups * kN, 3);
  std::vector<double> scales = values(kM, 4);
  std::vector<double> dy = values(kM * kN, 5);
  std::vector<double> y = std::vector<double>(at(kM * kN), kNan);
  std::vector<double> dx = std::vector<double>(at(kM * kK), kNan);
  std::vector<double> dweight = values(kGroups * kN * kK, 6);  // what a gradient buffer holds
  std::vector<double> dbias = values(kGroups * kN, 7);
  std::vector<double> dscales = std::vector<double>(at(kM), kNan);
  const std::vector<double> dweight_before = dweight;
  const std::vector<double> dbias_before = dbias;
  std::vector<void*> weight_list = pointers(weight);
  std::vector<void*> bias_list = pointers(bias);
  std::vector<void*> dweight_list = pointers(dweight);
  std::vector<void*> dbias_list = pointers(dbias);
  GroupSizes splits{kSplits.data(), DType::kI32, kGroups};
  Context context;

  Fixture() {  // nothing may be read behind the last group
    for (int64_t row = 9; row < kM; ++row) {
      for (int64_t i = 0; i < kK; ++i) x[at(row * kK + i)] = kNan;
      for (int64_t i = 0; i < kN; ++i) dy[at(row * kN + i)] = kNan;
    }
  }

  GroupedTensor matrices(std::vector<double>& data, std::vector<void*>& list, Form form) {
    if (form == Form::kSingle) return view(data, {kGroups, kN, kK});
    return GroupedTensor::list(list.data(), kGroups,
                               TensorView::contiguous(nullptr, DType::kF64, {kN, kK}));
  }
  GroupedTensor vectors(std::vector<double>& data, std::vector<void*>& list, Form form) {
    if (form == Form::kSingle) return GroupedTensor::vectors(view(data, {kGroups, kN}));
    return GroupedTensor::list(list.data(), kGroups,
                               TensorView::contiguous(nullptr, DType::kF64, {kN}));
  }
  GroupedLinearParameters parameters(Form form, bool with_bias = true) {
    return {.weight = matrices(weight, weight_list, form),
            .bias = with_bias ? vectors(bias, bias_list, form) : GroupedTensor{}};
  }
  GroupedLinearForwardArgs forward_args(bool with_scales = true) {
    return {.x = view(x, {kM, kK}),
            .splits = splits,
            .scales = with_scales ? view(scales, {kM}) : TensorView{},
            .y = view(y, {kM, kN})};
  }
  GroupedLinearBackwardArgs backward_args(Form form) {
    return {.dy = view(dy, {kM, kN}),
            .dx = view(dx, {kM, kK}),
            .dweight = matrices(dweight, dweight_list, form),
            .dbias = vectors(dbias, dbias_list, form),
            .dscales = view(dscales, {kM})};
  }

  void expect_forward(bool with_bias, bool with_scales) const {
    for (int64_t row = 0; row < kM; ++row) {
      const int64_t g = group_of(row);
      for (int64_t n = 0; n < kN; ++n) {
        double expected = 0;
        for (int64_t k = 0; k < kK && g >= 0; ++k) {
          expected += x[at(row * kK + k)] * weight[at((g * kN + n) * kK + k)];
        }
        if (g >= 0 && with_bias) {
          expected += (with_scales ? scales[at(row)] : 1.0) * bias[at(g * kN + n)];
        }
        EXPECT_NEAR(y[at(row * kN + n)], expected, 1e-12) << "y " << row << " " << n;
      }
    }
  }
  void expect_dx() const {
    for (int64_t row = 0; row < kM; ++row) {
      const int64_t g = group_of(row);
      for (int64_t k = 0; k < kK; ++k) {
        double expected = 0;
        for (int64_t n = 0; n < kN && g >= 0; ++n) {
          expected += dy[at(row * kN + n)] * weight[at((g * kN + n) * kK + k)];
        }
        EXPECT_NEAR(dx[at(row * kK + k)], expected, 1e-12) << "dx " << row << " " << k;
      }
    }
  }
  /// `beta` of each group; `times`: how often the product was added.
  void expect_dweight(const std::vector<double>& beta, int times = 1) const {
    for (int64_t g = 0; g < kGroups; ++g) {
      for (int64_t n = 0; n < kN; ++n) {
        for (int64_t k = 0; k < kK; ++k) {
          const size_t index = at((g * kN + n) * kK + k);
          double expected = beta[at(g)] * dweight_before[index];
          for (int64_t row = 0; row < kM; ++row) {
            if (group_of(row) != g) continue;
            expected += times * dy[at(row * kN + n)] * x[at(row * kK + k)];
          }
          EXPECT_NEAR(dweight[index], expected, 1e-12) << "dweight " << g << " " << n << " " << k;
        }
      }
    }
  }
  void expect_bias_grads(bool accumulate, bool with_scales) const {
    for (int64_t g = 0; g < kGroups; ++g) {
      for (int64_t n = 0; n < kN; ++n) {
        double expected = accumulate ? dbias_before[at(g * kN + n)] : 0.0;
        for (int64_t row = 0; row < kM; ++row) {
          if (group_of(row) != g) continue;
          expected += (with_scales ? scales[at(row)] : 1.0) * dy[at(row * kN + n)];
        }
        EXPECT_NEAR(dbias[at(g * kN + n)], expected, 1e-12) << "dbias " << g << " " << n;
      }
    }
    for (int64_t row = 0; row < kM && with_scales; ++row) {
      double expected = 0;
      for (int64_t n = 0; n < kN && group_of(row) >= 0; ++n) {
        expected += dy[at(row * kN + n)] * bias[at(group_of(row) * kN + n)];
      }
      EXPECT_NEAR(dscales[at(row)], expected, 1e-12) << "dscales " << row;
    }
  }
  bool gradients_untouched() const {
    return std::isnan(dx[0]) && std::isnan(dscales[0]) && dweight == dweight_before &&
           dbias == dbias_before;
  }
};

class GroupedLinearModes : public ::testing::TestWithParam<std::tuple<Form, Wgrad, bool>> {};

TEST_P(GroupedLinearModes, EveryGradientComesOutAndNoneIsDropped) {
  const auto [form, wgrad, with_scales] = GetParam();
  const bool delayed = wgrad == Wgrad::kDelayed || wgrad == Wgrad::kDelayedMainGrad;
  const bool main_grad = wgrad == Wgrad::kMainGrad || wgrad == Wgrad::kDelayedMainGrad;
  Fixture f;
  GroupedLinear layer(f.parameters(form),
                      {.delay_wgrad = delayed, .accumulate_into_main_grad = main_grad});
  GroupedLinearSaved saved;
  ASSERT_EQ(layer.forward(f.context, f.forward_args(with_scales), &saved).message(), "");
  f.expect_forward(true, with_scales);

  GroupedLinearBackwardArgs args = f.backward_args(form);
  if (main_grad) {
    args.main_grad = form == Form::kSingle ? MainGrad(view(f.dweight, {kGroups * kN, kK}))
                                           : MainGrad(args.dweight);
    args.dweight = {};
  }
  if (!with_scales) args.dscales = {};
  ASSERT_EQ(layer.backward(f.context, saved, args).message(), "");
  f.expect_dx();
  f.expect_bias_grads(false, with_scales);
  if (delayed) {
    EXPECT_EQ(f.dweight, f.dweight_before);  // not yet
    EXPECT_EQ(layer.pending_wgrads(), 1u);
    ASSERT_EQ(layer.backward_dw(f.context).message(), "");
  }
  EXPECT_EQ(layer.pending_wgrads(), 0u);
  f.expect_dweight(std::vector<double>(kGroups, main_grad ? 1.0 : 0.0));
}

INSTANTIATE_TEST_SUITE_P(All, GroupedLinearModes,
                         ::testing::Combine(::testing::Values(Form::kSingle, Form::kList),
                                            ::testing::Values(Wgrad::kNow, Wgrad::kDelayed,
                                                              Wgrad::kMainGrad,
                                                              Wgrad::kDelayedMainGrad),
                                            ::testing::Bool()));

TEST(GroupedLinear, BackwardDwWithNothingStoredDoesNothing) {
  Fixture f;
  GroupedLinear layer(f.parameters(Form::kSingle), {.delay_wgrad = true});
  EXPECT_TRUE(layer.backward_dw(f.context).ok());
  EXPECT_TRUE(f.gradients_untouched());
}

TEST(GroupedLinear, DelayedWgradAddsToAnExistingGrad) {
  for (const Form form : {Form::kSingle, Form::kList}) {
    Fixture f;
    GroupedLinear layer(f.parameters(form), {.delay_wgrad = true});
    GroupedLinearSaved saved;
    ASSERT_TRUE(layer.forward(f.context, f.forward_args(), &saved).ok());
    GroupedLinearBackwardArgs args = f.backward_args(form);
    args.dweight_beta = 1.0;
    args.accumulate_dbias = true;
    ASSERT_TRUE(layer.backward(f.context, saved, args).ok());
    ASSERT_TRUE(layer.backward_dw(f.context).ok());
    f.expect_dweight({1, 1, 1});
    f.expect_bias_grads(true, true);
  }
}

TEST(GroupedLinear, DelayedWgradsRunOldestFirst) {
  Fixture f;
  GroupedLinear layer(f.parameters(Form::kSingle), {.delay_wgrad = true});
  GroupedLinearSaved saved;
  ASSERT_TRUE(layer.forward(f.context, f.forward_args(), &saved).ok());
  GroupedLinearBackwardArgs args = f.backward_args(Form::kSingle);
  ASSERT_TRUE(layer.backward(f.context, saved, args).ok());
  args.dweight_beta = 1.0;
  ASSERT_TRUE(layer.backward(f.context, saved, args).ok());
  EXPECT_EQ(layer.pending_wgrads(), 2u);
  ASSERT_TRUE(layer.backward_dw(f.context).ok());
  f.expect_dweight({0, 0, 0}, 1);
  ASSERT_TRUE(layer.backward_dw(f.context).ok());
  f.expect_dweight({0, 0, 0}, 2);
}

TEST(GroupedLinear, StoredViewsAreForgottenAfterTheWgrad) {
  Fixture f;
  GroupedLinear layer(f.parameters(Form::kSingle), {.delay_wgrad = true});
  {
    std::vector<double> x = f.x;
    GroupedLinearForwardArgs forward = f.forward_args();
    forward.x = view(x, {kM, kK});
    GroupedLinearSaved saved;
    ASSERT_TRUE(layer.forward(f.context, forward, &saved).ok());
    ASSERT_TRUE(layer.backward(f.context, saved, f.backward_args(Form::kSingle)).ok());
    ASSERT_TRUE(layer.backward_dw(f.context).ok());
  }  // the activations are gone
  EXPECT_EQ(layer.pending_wgrads(), 0u);
  const std::vector<double> dweight = f.dweight;
  EXPECT_TRUE(layer.backward_dw(f.context).ok());
  EXPECT_EQ(f.dweight, dweight);
}

TEST(GroupedLinear, EachParameterSaysWhetherItsMainGradIsOverwritten) {
  const std::vector<double> beta = {1, 1, 0};
  for (const bool delayed : {false, true}) {
    Fixture f;
    GroupedLinear layer(f.parameters(Form::kList),
                        {.delay_wgrad = delayed, .accumulate_into_main_grad = true});
    GroupedLinearSaved saved;
    ASSERT_TRUE(layer.forward(f.context, f.forward_args(), &saved).ok());
    GroupedLinearBackwardArgs args = f.backward_args(Form::kList);
    args.main_grad = MainGrad(args.dweight);
    args.dweight = {};
    args.main_grad_beta = TensorView::contiguous(beta.data(), DType::kF64, {kGroups});
    ASSERT_EQ(layer.backward(f.context, saved, args).message(), "");
    ASSERT_TRUE(layer.backward_dw(f.context).ok());
    f.expect_dweight(beta);
  }
}

TEST(GroupedLinear, OnlyWhatIsAskedForIsComputed) {
  Fixture f;
  GroupedLinear layer(f.parameters(Form::kSingle), {.delay_wgrad = true});
  GroupedLinearSaved saved;
  ASSERT_TRUE(layer.forward(f.context, f.forward_args(), &saved).ok());
  ASSERT_TRUE(layer.backward(f.context, saved, {.dy = view(f.dy, {kM, kN})}).ok());
  EXPECT_EQ(layer.pending_wgrads(), 0u);
  EXPECT_TRUE(f.gradients_untouched());
}

TEST(GroupedLinear, MainGradMayHoldWiderValuesInAnyViewableShape) {
  Fixture f;
  GroupedLinear layer(f.parameters(Form::kSingle, false), {.accumulate_into_main_grad = true});
  GroupedLinearSaved saved;
  ASSERT_TRUE(layer.forward(f.context, f.forward_args(false), &saved).ok());
  f.expect_forward(false, false);
  // A flat buffer of f32 with every second element in use.
  std::vector<float> flat(at(2 * kGroups * kN * kK), 1.0f);
  const GroupedLinearBackwardArgs args{
      .dy = view(f.dy, {kM, kN}),
      .main_grad = TensorView::strided(flat.data(), DType::kF32, {kGroups * kN * kK}, {2})};
  ASSERT_EQ(layer.backward(f.context, saved, args).message(), "");
  for (size_t i = 0; i < f.dweight.size(); ++i) {
    f.dweight[i] = static_cast<double>(flat[2 * i]) - 1.0;
    EXPECT_EQ(flat[2 * i + 1], 1.0f);
  }
  for (int64_t g = 0; g < kGroups; ++g) {
    double sum = 0;
    for (int64_t row = 0; row < 9; ++row) {
      if (group_of(row) == g) sum += f.dy[at(row * kN + 2)] * f.x[at(row * kK + 3)];
    }
    EXPECT_NEAR(f.dweight[at((g * kN + 2) * kK + 3)], sum, 1e-5);
  }
}

TEST(GroupedLinear, ShardedExpertsUseTheirOwnRows) {
  Fixture f;  // the layer holds the last two of three groups
  const GroupedLinearParameters parameters{
      .weight = TensorView::contiguous(f.weight.data() + kN * kK, DType::kF64, {2, kN, kK})};
  GroupedLinear layer(parameters);
  GroupedLinearForwardArgs forward = f.forward_args(false);
  forward.group_offset = 1;
  GroupedLinearSaved saved;
  ASSERT_EQ(layer.forward(f.context, forward, &saved).message(), "");
  ASSERT_TRUE(
      layer.backward(f.context, saved, {.dy = view(f.dy, {kM, kN}), .dx = view(f.dx, {kM, kK})})
          .ok());
  for (int64_t row = 0; row < 4; ++row) {  // another shard's
    for (int64_t n = 0; n < kN; ++n) EXPECT_EQ(f.y[at(row * kN + n)], 0.0);
    for (int64_t k = 0; k < kK; ++k) EXPECT_EQ(f.dx[at(row * kK + k)], 0.0);
  }
  EXPECT_NE(f.y[at(4 * kN)], 0.0);
}

}  // namespace
}  // namespace cadre
