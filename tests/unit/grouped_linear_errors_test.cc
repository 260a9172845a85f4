// GroupedLinear's errors: each names the argument, and nothing has been written. Views under
// another shape, which main_grad needs, are tested here too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "cadre/grouped_linear.h"
#include "ops/view_as.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kM = 6;
constexpr int64_t kK = 4;
constexpr int64_t kN = 3;
constexpr int64_t kGroups = 2;

/// A complete call; a row of the table spoils one part of it.
struct Call {
  std::vector<float> x = std::vector<float>(kM * kK, 1);
  std::vector<float> weight = std::vector<float>(kGroups * kN * kK, 1);
  std::vector<float> bias = std::vector<float>(kGroups * kN, 1);
  std::vector<float> scales = std::vector<float>(kM, 1);
  std::vector<float> y = std::vector<float>(kM * kN, -7);
  std::vector<float> dy = std::vector<float>(kM * kN, 1);
  std::vector<float> dx = std::vector<float>(kM * kK, -7);
  std::vector<float> dweight = std::vector<float>(kGroups * kN * kK, -7);
  std::vector<float> dbias = std::vector<float>(kGroups * kN, -7);
  std::vector<float> dscales = std::vector<float>(kM, -7);
  std::vector<int64_t> splits = {2, 3};
  GroupedLinearOptions options{};
  GroupedLinearParameters parameters{.weight = view(weight, {kGroups, kN, kK}),
                                     .bias = GroupedTensor::vectors(view(bias, {kGroups, kN}))};
  GroupedLinearForwardArgs forward{.x = view(x, {kM, kK}),
                                   .splits = {splits.data(), DType::kI64, kGroups},
                                   .scales = view(scales, {kM}),
                                   .y = view(y, {kM, kN})};
  GroupedLinearBackwardArgs backward{.dy = view(dy, {kM, kN}),
                                     .dx = view(dx, {kM, kK}),
                                     .dweight = view(dweight, {kGroups, kN, kK}),
                                     .dbias = GroupedTensor::vectors(view(dbias, {kGroups, kN})),
                                     .dscales = view(dscales, {kM})};
  bool forget_forward = false;

  static TensorView view(const std::vector<float>& data, std::initializer_list<int64_t> shape) {
    return TensorView::contiguous(data.data(), DType::kF32, shape);
  }
  bool untouched() const {
    for (const auto* out : {&y, &dx, &dweight, &dbias, &dscales}) {
      for (const float value : *out) {
        if (value != -7) return false;
      }
    }
    return true;
  }
};

struct Row {
  const char* name;
  std::function<void(Call&)> spoil;
  const char* message;
};

TEST(GroupedLinearErrors, ForwardNamesTheArgumentAndTouchesNothing) {
  const Row rows[] = {
      {"no weight", [](Call& c) { c.parameters.weight = {}; }, "weight = nothing"},
      {"weight of another k",
       [](Call& c) {
         c.parameters.weight = Call::view(c.weight, {kGroups, kN, 3});
       },
       "weight.k = 3, expected x.k = 4"},
      {"bias of another n",
       [](Call& c) {
         c.parameters.bias = GroupedTensor::vectors(Call::view(c.bias, {2, 2}));
       },
       "bias.n = 2"},
      {"bias of other groups",
       [](Call& c) {
         c.parameters.bias = GroupedTensor::vectors(Call::view(c.bias, {1, kN}));
       },
       "bias.num_groups = 1, expected weight.num_groups = 2"},
      {"scales without bias", [](Call& c) { c.parameters.bias = {}; },
       "scales = given, expected none because there is no bias"},
      {"too few scales", [](Call& c) { c.forward.scales = Call::view(c.scales, {kM - 1}); },
       "scales.shape[0] = 5, expected x.m = 6"},
      {"y of another n",
       [](Call& c) {
         c.forward.y = Call::view(c.y, {kM, kN - 1});
       },
       "y = [6, 2] with strides [2, 1], expected [6, 3]"},
      {"splits above m", [](Call& c) { c.splits[0] = 100; },
       "grouped_linear: y: gmm: sum of group_sizes"},
      {"y on x",
       [](Call& c) {
         c.forward.y = Call::view(c.x, {kM, kN});
       },
       "overlaps"},
  };
  for (const Row& row : rows) {
    Call call;
    row.spoil(call);
    Context context;
    GroupedLinear layer(call.parameters, call.options);
    GroupedLinearSaved saved;
    const Status status = layer.forward(context, call.forward, &saved);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << row.name;
    EXPECT_THAT(status.message(), HasSubstr(row.message)) << row.name;
    EXPECT_THAT(status.message(), HasSubstr("grouped_linear: ")) << row.name;
    EXPECT_TRUE(call.untouched()) << row.name;
    EXPECT_FALSE(saved.x.given()) << row.name;
  }
}

const Row kBackwardRows[] = {
    {"no forward", [](Call& c) { c.forget_forward = true; }, "saved.x = nothing"},
    {"dy of another n",
     [](Call& c) {
       c.backward.dy = Call::view(c.dy, {kM, 2});
     },
     "dy = [6, 2] with strides [2, 1], expected [6, 3]"},
    {"dx of another k",
     [](Call& c) {
       c.backward.dx = Call::view(c.dx, {kM, 3});
     },
     "dx = [6, 3] with strides [3, 1], expected [6, 4]"},
    {"dweight transposed",
     [](Call& c) {
       c.backward.dweight = Call::view(c.dweight, {kGroups, kK, kN});
     },
     "dweight = [4, 3] with strides [3, 1], expected matrices of [3, 4]"},
    {"dweight of other groups",
     [](Call& c) {
       c.backward.dweight = Call::view(c.dweight, {1, kN, kK});
     },
     "dweight.num_groups = 1, expected weight.num_groups = 2"},
    {"dbias without bias",
     [](Call& c) {
       c.parameters.bias = {};
       c.forward.scales = {};
       c.backward.dscales = {};
     },
     "dbias = given, expected none because there is no bias"},
    {"dscales without scales", [](Call& c) { c.forward.scales = {}; },
     "dscales = given, expected none because forward() had no scales"},
    {"main_grad without the option",
     [](Call& c) {
       c.backward.main_grad = Call::view(c.dweight, {kGroups, kN, kK});
       c.backward.dweight = {};
     },
     "main_grad = given, expected none without accumulate_into_main_grad"},
    {"dweight with the option", [](Call& c) { c.options.accumulate_into_main_grad = true; },
     "dweight = given, expected none because accumulate_into_main_grad is set"},
    {"missing main_grad",
     [](Call& c) {
       c.options.accumulate_into_main_grad = true;
       c.backward.dweight = {};
     },
     "main_grad = nothing, expected a tensor viewable as [2, 3, 4], or a list of [3, 4]"},
    {"main_grad that is no view",
     [](Call& c) {
       c.options.accumulate_into_main_grad = true;
       c.backward.dweight = {};
       c.backward.main_grad = TensorView::strided(c.dweight.data(), DType::kF32, {4, 6}, {1, 4});
     },
     "main_grad = [4, 6] with strides [1, 4], expected a tensor viewable as [2, 3, 4]"},
    {"main_grad of another size",
     [](Call& c) {
       c.options.accumulate_into_main_grad = true;
       c.backward.dweight = {};
       c.backward.main_grad = Call::view(c.dweight, {kN, kK});
     },
     "main_grad = [3, 4] with strides [4, 1], expected a tensor viewable as [2, 3, 4]"},
    {"dx on x",
     [](Call& c) {
       c.backward.dx = Call::view(c.x, {kM, kK});
     },
     "dx overlaps x"},
    {"dweight on weight",
     [](Call& c) {
       c.backward.dweight = Call::view(c.weight, {kGroups, kN, kK});
     },
     "dweight overlaps weight"},
    {"dbias on dweight",
     [](Call& c) {
       c.backward.dbias = GroupedTensor::vectors(Call::view(c.dweight, {kGroups, kN}));
     },
     "dbias overlaps dweight"},
    {"unknown dtype of dbias",
     [](Call& c) {
       c.backward.dbias = GroupedTensor::vectors(
           TensorView::contiguous(c.dbias.data(), DType::kI32, {kGroups, kN}));
     },
     "grouped_linear: dbias: bias_grad: dbias.dtype = i32"},
};

TEST(GroupedLinearErrors, BackwardNamesTheArgumentAndTouchesNothing) {
  for (const Row& row : kBackwardRows) {
    for (const bool delayed : {false, true}) {
      Call call;
      row.spoil(call);
      call.options.delay_wgrad = delayed;
      Context context;
      GroupedLinear layer(call.parameters, call.options);
      GroupedLinearSaved saved;
      ASSERT_EQ(layer.forward(context, call.forward, &saved).message(), "") << row.name;
      call.y.assign(call.y.size(), -7);
      if (call.forget_forward) saved = {};
      const std::vector<float> x = call.x;
      const std::vector<float> weight = call.weight;
      const Status status = layer.backward(context, saved, call.backward);
      EXPECT_EQ(status.code(), StatusCode::kInvalid) << row.name;
      EXPECT_THAT(status.message(), HasSubstr(row.message)) << row.name;
      EXPECT_TRUE(call.untouched() && call.x == x && call.weight == weight) << row.name;
      EXPECT_EQ(layer.pending_wgrads(), 0u) << row.name;
    }
  }
}

TEST(GroupedLinearErrors, NoBackendIsAnErrorBeforeAnyWork) {
  Call call;
  Context context;
  GroupedLinear layer(call.parameters, call.options);
  GroupedLinearSaved saved;
  ASSERT_TRUE(layer.forward(context, call.forward, &saved).ok());
  call.y.assign(call.y.size(), -7);
  call.backward.options.config = "no such kernel";
  EXPECT_FALSE(layer.backward(context, saved, call.backward).ok());
  EXPECT_TRUE(call.untouched());
}

TEST(ViewAs, FindsTheStridesOfEveryViewableShape) {
  std::vector<float> data(1000);
  TensorView view;
  // 24 elements at every second place, as [2, 3, 4].
  ASSERT_TRUE(
      ops::view_as(TensorView::strided(data.data(), DType::kF32, {24}, {2}), {2, 3, 4}, &view));
  EXPECT_EQ(view.strides[0], 24);
  EXPECT_EQ(view.strides[1], 8);
  EXPECT_EQ(view.strides[2], 2);
  // Rows of a wider buffer: [6, 4] with a row stride of 10.
  ASSERT_TRUE(ops::view_as(TensorView::strided(data.data(), DType::kF32, {6, 4}, {10, 1}),
                           {2, 3, 4}, &view));
  EXPECT_EQ(view.strides[0], 30);
  EXPECT_EQ(view.strides[1], 10);
  // Dims of one element may have any stride.
  ASSERT_TRUE(ops::view_as(TensorView::strided(data.data(), DType::kF32, {1, 24, 1}, {7, 1, 99}),
                           {1, 24, 1}, &view));
  EXPECT_EQ(view.strides[1], 1);
  ASSERT_TRUE(ops::view_as(TensorView::contiguous(nullptr, DType::kF32, {0, 4}), {0, 3, 4}, &view));
  EXPECT_EQ(view.rank, 3);
}

TEST(ViewAs, RefusesWhatIsNoView) {
  std::vector<float> data(1000);
  TensorView view;
  const std::array<int64_t, 3> shape = {2, 3, 4};
  EXPECT_FALSE(ops::view_as(TensorView::contiguous(data.data(), DType::kF32, {25}), shape, &view));
  EXPECT_FALSE(
      ops::view_as(TensorView::strided(data.data(), DType::kF32, {4, 6}, {10, 1}), shape, &view));
  EXPECT_FALSE(
      ops::view_as(TensorView::strided(data.data(), DType::kF32, {4, 6}, {1, 4}), shape, &view));
  EXPECT_FALSE(ops::view_as(TensorView{}, shape, &view));
}

}  // namespace
}  // namespace cadre
