// Bad input of the ops around the products: each row gets an error that names op, argument,
// expected and received, and touches nothing. And the C functions: the same results and the same
// messages.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include "cadre/c_api.h"
#include "cadre/cadre.h"

namespace cadre::tests {
namespace {

constexpr int64_t kTokens = 4, kTopK = 2, kExperts = 6, kWidth = 5, kSlots = kTokens * kTopK;

/// Memory of one valid call of every op; outputs are a pattern that nothing may change.
struct Memory {
  int32_t ids[kSlots] = {0, 1, 2, 3, 4, 5, 0, 3};
  int32_t slot_row[kSlots] = {0, 2, 3, 4, 6, 7, 1, 5};
  int32_t source_row[kSlots] = {0, 3, 0, 1, 1, 3, 2, 2};
  float x[kTokens * kWidth] = {};
  float y[kSlots * kWidth] = {};
  float logits[kTokens * kExperts] = {};
  float weights[kSlots] = {};
  float bias[kExperts] = {};
  struct Outputs {
    float rows[kSlots * kWidth];
    float weights[kSlots];
    int32_t sizes[kExperts];
    int32_t source[kSlots];
    int32_t slot[kSlots];
  } out;

  Memory() { std::memset(&out, 0x5a, sizeof(out)); }
  bool same_as(const Memory& other) const { return std::memcmp(this, &other, sizeof(*this)) == 0; }
};

TensorView f32(const float* data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data, DType::kF32, shape);
}
TensorView i32(const int32_t* data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data, DType::kI32, shape);
}

RouteArgs valid(Memory& m, const RouteArgs* /*tag*/) {
  return {.expert_ids = i32(m.ids, {kTokens, kTopK}),
          .group_sizes = i32(m.out.sizes, {kExperts}),
          .source_row = i32(m.out.source, {kSlots}),
          .slot_row = i32(m.out.slot, {kTokens, kTopK})};
}
PermuteArgs valid(Memory& m, const PermuteArgs* /*tag*/) {
  return {.x = f32(m.x, {kTokens, kWidth}),
          .source_row = i32(m.source_row, {kSlots}),
          .out = f32(m.out.rows, {kSlots, kWidth})};
}
CombineArgs valid(Memory& m, const CombineArgs* /*tag*/) {
  return {.y = f32(m.y, {kSlots, kWidth}),
          .slot_row = i32(m.slot_row, {kTokens, kTopK}),
          .weights = f32(m.weights, {kTokens, kTopK}),
          .out = f32(m.out.rows, {kTokens, kWidth})};
}
CombineGradArgs valid(Memory& m, const CombineGradArgs* /*tag*/) {
  return {.dout = f32(m.x, {kTokens, kWidth}),
          .slot_row = i32(m.slot_row, {kTokens, kTopK}),
          .source_row = i32(m.source_row, {kSlots}),
          .weights = f32(m.weights, {kTokens, kTopK}),
          .y = f32(m.y, {kSlots, kWidth}),
          .dy = f32(m.out.rows, {kSlots, kWidth}),
          .dweights = f32(m.out.weights, {kTokens, kTopK})};
}
SelectExpertsArgs valid(Memory& m, const SelectExpertsArgs* /*tag*/) {
  return {.logits = f32(m.logits, {kTokens, kExperts}),
          .correction_bias = f32(m.bias, {kExperts}),
          .expert_ids = i32(m.out.slot, {kTokens, kTopK}),
          .weights = f32(m.out.weights, {kTokens, kTopK})};
}
SelectExpertsGradArgs valid(Memory& m, const SelectExpertsGradArgs* /*tag*/) {
  return {.logits = f32(m.logits, {kTokens, kExperts}),
          .expert_ids = i32(m.ids, {kTokens, kTopK}),
          .dweights = f32(m.weights, {kTokens, kTopK}),
          .dlogits = f32(m.out.rows, {kTokens, kExperts})};
}

/// Two rows of width 8 with their gates, in y.
constexpr int64_t kPreactRows = 2, kInner = 4;
ActivateArgs valid(Memory& m, const ActivateArgs* /*tag*/) {
  return {.preact = f32(m.y, {kPreactRows, 2 * kInner}),
          .activation = {.kind = ActivationKind::kClampedSwiglu},
          .out = f32(m.out.rows, {kPreactRows, kInner})};
}
ActivateGradArgs valid(Memory& m, const ActivateGradArgs* /*tag*/) {
  return {.preact = f32(m.y, {kPreactRows, 2 * kInner}),
          .grad = f32(m.x, {kPreactRows, kInner}),
          .row_scale = f32(m.weights, {kPreactRows}),
          .activation = {.kind = ActivationKind::kSwiglu},
          .d_preact = f32(m.out.rows, {kPreactRows, 2 * kInner}),
          .activated = f32(m.out.rows + 16, {kPreactRows, kInner}),
          .row_dot = f32(m.out.weights, {kPreactRows})};
}

Status call(Context& c, const ActivateArgs& args) { return activate(c, args); }
Status call(Context& c, const ActivateGradArgs& args) { return activate_grad(c, args); }
Status call(Context& c, const RouteArgs& args) { return route(c, args); }
Status call(Context& c, const PermuteArgs& args) { return permute(c, args); }
Status call(Context& c, const CombineArgs& args) { return combine(c, args); }
Status call(Context& c, const CombineGradArgs& args) { return combine_grad(c, args); }
Status call(Context& c, const SelectExpertsArgs& args) { return select_experts(c, args); }
Status call(Context& c, const SelectExpertsGradArgs& args) { return select_experts_grad(c, args); }

template <typename Args>
struct Row {
  std::function<void(Args&, Memory&)> spoil;
  const char* message;
};

template <typename Args>
void expect_errors(std::initializer_list<Row<Args>> rows) {
  Context context;
  Memory good;
  ASSERT_TRUE(call(context, valid(good, static_cast<Args*>(nullptr))).ok());
  ASSERT_FALSE(good.same_as(Memory())) << "the valid call must write, or the test shows nothing";
  for (const Row<Args>& row : rows) {
    Memory memory;
    Args args = valid(memory, static_cast<Args*>(nullptr));
    row.spoil(args, memory);
    const Memory before = memory;
    const Status status = call(context, args);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << row.message;
    EXPECT_EQ(status.message(), row.message);
    EXPECT_TRUE(memory.same_as(before)) << row.message;
  }
}

TEST(BadInputRows, Route) {
  using A = RouteArgs;
  expect_errors<A>({
      {[](A& a, Memory& m) {
         a.expert_ids = f32(m.x, {kTokens, kTopK});
       },
       "route: expert_ids.dtype = f32, expected an integer type (i8 to i64, u8 to u64)"},
      {[](A& a, Memory& m) { a.source_row = i32(m.out.source, {kSlots - 1}); },
       "route: source_row.shape[0] = 7, expected expert_ids' slots = 8"},
      {[](A& a, Memory& m) {
         a.slot_row = i32(m.out.slot, {kTopK, kTokens});
       },
       "route: slot_row.shape = [2, 4], expected the shape of expert_ids = [4, 2]"},
      {[](A& a, Memory& m) { a.group_sizes = f32(m.out.rows, {kExperts}); },
       "route: group_sizes.dtype = f32, expected i32 or i64"},
      {[](A& a, Memory&) { a.slot_row.strides[1] = 0; },
       "route: slot_row overlaps itself, expected every element at its own address"},
      {[](A& a, Memory& m) {
         a.slot_row = i32(m.ids, {kTokens, kTopK});
       },
       "route: slot_row overlaps expert_ids, expected separate memory"},
      {[](A& a, Memory& m) { a.source_row = i32(m.out.slot, {kSlots}); },
       "route: slot_row overlaps source_row, expected separate memory"},
      {[](A& a, Memory&) {
         a.source_row.device = {DeviceKind::kCuda, 0};
       },
       "route: source_row.device = cuda:0, expected cpu, the device of the other tensors"},
  });
}

TEST(BadInputRows, RouteCountsItsSlots) {
  Memory m;
  const int64_t tokens = int64_t{1} << 31;
  RouteArgs args = valid(m, static_cast<RouteArgs*>(nullptr));
  args.expert_ids = TensorView::strided(m.ids, DType::kI32, {tokens, 2}, {0, 0});
  args.source_row = TensorView::contiguous(m.out.source, DType::kI64, {tokens * 2});
  args.slot_row = TensorView::contiguous(m.out.slot, DType::kI64, {tokens, 2});
  Context context;
  EXPECT_EQ(route(context, args).message(),
            "route: expert_ids.shape = [2147483648, 2], expected fewer than 2^32 slots");
}

TEST(BadInputRows, Permute) {
  using A = PermuteArgs;
  expect_errors<A>({
      {[](A& a, Memory& m) { a.source_row = f32(m.y, {kSlots}); },
       "permute: source_row.dtype = f32, expected i32 or i64"},
      {[](A&, Memory& m) { m.source_row[5] = 4; },
       "permute: source_row[5] = 4, expected -1 or 0 to x.shape[0] - 1 = 3"},
      {[](A&, Memory& m) { m.source_row[0] = -2; },
       "permute: source_row[0] = -2, expected -1 or 0 to x.shape[0] - 1 = 3"},
      {[](A& a, Memory& m) {
         a.out = f32(m.out.rows, {kSlots, 4});
       },
       "permute: out.shape = [8, 4], expected [source_row's length, x.h] = [8, 5]"},
      {[](A& a, Memory&) { a.out.dtype = DType::kI32; },
       "permute: out.dtype = i32, expected x.dtype = f32"},
      {[](A& a, Memory& m) {
         a.slot_row = i32(m.slot_row, {2, 4});
       },
       "permute: slot_row.shape[0] = 2, expected x.shape[0] = 4"},
      {[](A& a, Memory& m) {
         a.slot_row = f32(m.y, {kTokens, kTopK});
       },
       "permute: slot_row.dtype = f32, expected i32 or i64"},
      {[](A& a, Memory&) { a.out.strides[0] = 2; },
       "permute: out overlaps itself, expected every element at its own address"},
  });
}

TEST(BadInputRows, Combine) {
  using A = CombineArgs;
  expect_errors<A>({
      {[](A&, Memory& m) { m.slot_row[3] = 8; },
       "combine: slot_row[1, 1] = 8, expected -1 or 0 to y.shape[0] - 1 = 7"},
      {[](A& a, Memory& m) {
         a.weights = f32(m.weights, {kTopK, kTokens});
       },
       "combine: weights.shape = [2, 4], expected the shape of slot_row = [4, 2]"},
      {[](A& a, Memory& m) {
         a.shared = f32(m.x, {kTokens, 4});
       },
       "combine: shared.shape = [4, 4], expected [t, h] = [4, 5]"},
      {[](A& a, Memory&) { a.weights.dtype = DType::kI32; },
       "combine: weights.dtype = i32, expected f64, f32, bf16 or f16"},
      {[](A& a, Memory& m) {
         a.residual = f32(m.out.rows, {kTokens, kWidth});
       },
       "combine: out overlaps residual, expected separate memory"},
  });
}

TEST(BadInputRows, CombineGrad) {
  using A = CombineGradArgs;
  expect_errors<A>({
      {[](A& a, Memory&) { a.source_row = {}; },
       "combine_grad: dy is given without source_row, expected both"},
      {[](A& a, Memory& m) {
         a.dout = {};
         m.source_row[7] = 9;
       },
       "combine_grad: source_row[7] = 9, expected -1 or 0 to slot_row.shape[0] - 1 = 3"},
      {[](A& a, Memory&) { a.dout = a.y = a.dy = {}; },
       "combine_grad: dy = nothing, expected a tensor of rank 2"},
      {[](A& a, Memory&) { a.y = {}; }, "combine_grad: dweights is given without y, expected both"},
      {[](A&, Memory& m) { m.source_row[7] = 9; },
       "combine_grad: source_row[7] = 9, expected -1 or 0 to dout.shape[0] - 1 = 3"},
      {[](A& a, Memory& m) {
         a.slot_row = i32(m.slot_row, {3, kTopK});
       },
       "combine_grad: slot_row.shape[0] = 3, expected dout.shape[0] = 4"},
  });
}

TEST(BadInputRows, SelectExperts) {
  using A = SelectExpertsArgs;
  expect_errors<A>({
      {[](A& a, Memory&) { a.num_groups = 4; },
       "select_experts: num_groups = 4, expected a divisor of the number of experts = 6"},
      {[](A& a, Memory& m) {
         a.logits = f32(m.logits, {kTokens, 0});
         a.correction_bias = {};
         a.expert_ids = i32(m.out.slot, {kTokens, 0});
         a.weights = f32(m.out.weights, {kTokens, 0});
         a.num_groups = 2;
       },
       "select_experts: num_groups = 2, expected a divisor of the number of experts = 0"},
      {[](A& a, Memory&) { a.num_groups = 0; },
       "select_experts: num_groups = 0, expected a divisor of the number of experts = 6"},
      {[](A& a, Memory&) { a.num_groups = 3, a.top_groups = 4; },
       "select_experts: top_groups = 4, expected 1 to num_groups = 3"},
      {[](A& a, Memory&) { a.num_groups = 6; },
       "select_experts: expert_ids.shape[1] = 2, expected at most the experts of top_groups groups "
       "= 1"},
      {[](A& a, Memory& m) { a.correction_bias = f32(m.bias, {5}); },
       "select_experts: correction_bias.shape[0] = 5, expected the number of experts = 6"},
      {[](A& a, Memory&) { a.selection.score = static_cast<ExpertScore>(7); },
       "select_experts: selection.score = 7, expected 0 (softmax) or 1 (sigmoid)"},
      {[](A& a, Memory&) { a.logits.dtype = DType::kI8; },
       "select_experts: logits.dtype = i8, expected f64, f32, bf16 or f16"},
      {[](A& a, Memory& m) {
         a.weights = f32(m.out.weights, {kTokens, 1});
       },
       "select_experts: weights.shape = [4, 1], expected [logits.shape[0], top_k] = [4, 2]"},
  });
  expect_errors<SelectExpertsGradArgs>({
      {[](SelectExpertsGradArgs&, Memory& m) { m.ids[2] = 6; },
       "select_experts_grad: expert_ids[1, 0] = 6, expected -1 or 0 to logits.shape[1] - 1 = 5"},
      {[](SelectExpertsGradArgs& a, Memory& m) {
         a.dlogits = f32(m.out.rows, {kTokens, 5});
       },
       "select_experts_grad: dlogits.shape = [4, 5], expected the shape of logits = [4, 6]"},
  });
}

TEST(BadInputRows, Activate) {
  using A = ActivateArgs;
  expect_errors<A>({
      {[](A& a, Memory& m) {
         a.preact = f32(m.y, {kPreactRows, 7});
       },
       "activate: preact.shape[1] = 7, expected an even number: a gate and an up part for each "
       "result"},
      {[](A& a, Memory& m) {
         a.out = f32(m.out.rows, {kPreactRows, 8});
       },
       "activate: out.shape = [2, 8], expected [m, i] = [2, 4]"},
      {[](A& a, Memory&) { a.activation.kind = static_cast<ActivationKind>(9); },
       "activate: activation.kind = 9, expected 0 (none) to 8 (clamped swiglu)"},
      {[](A& a, Memory&) { a.activation.layout = static_cast<GateLayout>(2); },
       "activate: activation.layout = 2, expected 0 (concatenated) or 1 (interleaved)"},
      {[](A& a, Memory&) { a.activation.limit = -1; },
       "activate: activation.limit = -1, expected 0 or more"},
      {[](A& a, Memory&) { a.preact.dtype = DType::kI32; },
       "activate: preact.dtype = i32, expected f64, f32, bf16 or f16"},
      {[](A& a, Memory&) { a.out.dtype = DType::kI32; },
       "activate: out.dtype = i32, expected f64, f32, bf16 or f16"},
      {[](A& a, Memory&) { a.preact = {}; },
       "activate: preact = nothing, expected a tensor of rank 2"},
      {[](A& a, Memory& m) {
         a.out = f32(m.y, {kPreactRows, kInner});
       },
       "activate: out overlaps preact, expected separate memory"},
  });
}

TEST(BadInputRows, ActivateGrad) {
  using A = ActivateGradArgs;
  expect_errors<A>({
      {[](A& a, Memory&) { a.grad = {}; },
       "activate_grad: grad = nothing, expected a tensor of rank 2"},
      {[](A& a, Memory& m) {
         a.grad = f32(m.x, {kPreactRows, 3});
       },
       "activate_grad: grad.shape = [2, 3], expected [m, i] = [2, 4]"},
      {[](A& a, Memory& m) { a.row_scale = f32(m.weights, {3}); },
       "activate_grad: row_scale.shape[0] = 3, expected preact.shape[0] = 2"},
      {[](A& a, Memory& m) { a.row_scale = i32(m.ids, {kPreactRows}); },
       "activate_grad: row_scale.dtype = i32, expected f64, f32, bf16 or f16"},
      {[](A& a, Memory& m) {
         a.d_preact = f32(m.out.rows, {kPreactRows, kInner});
       },
       "activate_grad: d_preact.shape = [2, 4], expected the shape of preact = [2, 8]"},
      {[](A& a, Memory& m) {
         a.activated = f32(m.out.rows + 8, {kPreactRows, kInner});
       },
       "activate_grad: activated overlaps d_preact, expected separate memory"},
      {[](A& a, Memory&) { a.row_dot.strides[0] = 0; },
       "activate_grad: row_dot overlaps itself, expected every element at its own address"},
  });
}

cadre_tensor c_view(const TensorView& view) {
  cadre_tensor c = {};
  c.data = view.data;
  c.dtype = static_cast<cadre_dtype>(view.dtype);
  c.rank = view.rank;
  for (size_t i = 0; i < 4; ++i) {
    c.shape[i] = view.shape[i];
    c.strides[i] = view.strides[i];
  }
  return c;
}

class RowsInC : public testing::Test {
 protected:
  RowsInC() { EXPECT_EQ(cadre_context_create(nullptr, &context_), CADRE_OK); }
  ~RowsInC() override { cadre_context_destroy(context_); }

  cadre_context* context_ = nullptr;
  Context cpp_;
  Memory mine_, theirs_;  // of the C and of the C++ call
};

TEST_F(RowsInC, RouteGivesTheSame) {
  const RouteArgs args = valid(mine_, static_cast<RouteArgs*>(nullptr));
  const cadre_tensor ids = c_view(args.expert_ids), sizes = c_view(args.group_sizes),
                     source = c_view(args.source_row), slot = c_view(args.slot_row);
  cadre_route_args c;
  cadre_route_args_init(&c, sizeof(c));
  c.expert_ids = &ids;
  c.group_sizes = &sizes;
  c.source_row = &source;
  c.slot_row = &slot;
  EXPECT_EQ(cadre_route(context_, &c), CADRE_OK) << cadre_status_message();
  ASSERT_TRUE(route(cpp_, valid(theirs_, static_cast<RouteArgs*>(nullptr))).ok());
  EXPECT_TRUE(mine_.same_as(theirs_));
  size_t bytes = 1;
  EXPECT_EQ(cadre_route_workspace_size(context_, &c, &bytes), CADRE_OK);
  EXPECT_EQ(bytes, 0u);
  c.slot_row = nullptr;
  EXPECT_EQ(cadre_route(context_, &c), CADRE_INVALID);
  EXPECT_STREQ(cadre_status_message(), "route: slot_row = nothing, expected a tensor of rank 2");
}

TEST_F(RowsInC, PermuteAndCombineGiveTheSame) {
  for (float* data : {mine_.x, theirs_.x}) {
    for (int i = 0; i < kTokens * kWidth; ++i) data[i] = static_cast<float>(i);
  }
  const PermuteArgs args = valid(mine_, static_cast<PermuteArgs*>(nullptr));
  const cadre_tensor x = c_view(args.x), source = c_view(args.source_row), out = c_view(args.out);
  cadre_permute_args c;
  cadre_permute_args_init(&c, sizeof(c));
  c.x = &x;
  c.source_row = &source;
  c.out = &out;
  EXPECT_EQ(cadre_permute(context_, &c), CADRE_OK) << cadre_status_message();
  ASSERT_TRUE(permute(cpp_, valid(theirs_, static_cast<PermuteArgs*>(nullptr))).ok());
  EXPECT_TRUE(mine_.same_as(theirs_));

  const CombineGradArgs grad = valid(mine_, static_cast<CombineGradArgs*>(nullptr));
  const cadre_tensor dout = c_view(grad.dout), slot = c_view(grad.slot_row),
                     rows = c_view(grad.source_row), weights = c_view(grad.weights),
                     y = c_view(grad.y), dy = c_view(grad.dy), dweights = c_view(grad.dweights);
  cadre_combine_grad_args g;
  cadre_combine_grad_args_init(&g, sizeof(g));
  g.dout = &dout;
  g.slot_row = &slot;
  g.source_row = &rows;
  g.weights = &weights;
  g.y = &y;
  g.dy = &dy;
  g.dweights = &dweights;
  EXPECT_EQ(cadre_combine_grad(context_, &g), CADRE_OK) << cadre_status_message();
  ASSERT_TRUE(combine_grad(cpp_, valid(theirs_, static_cast<CombineGradArgs*>(nullptr))).ok());
  EXPECT_TRUE(mine_.same_as(theirs_));

  const CombineArgs sum = valid(mine_, static_cast<CombineArgs*>(nullptr));
  const cadre_tensor total = c_view(sum.out);
  cadre_combine_args s;
  cadre_combine_args_init(&s, sizeof(s));
  s.y = &y;
  s.slot_row = &slot;
  s.weights = &weights;
  s.out = &total;
  EXPECT_EQ(cadre_combine(context_, &s), CADRE_OK) << cadre_status_message();
  ASSERT_TRUE(combine(cpp_, valid(theirs_, static_cast<CombineArgs*>(nullptr))).ok());
  EXPECT_TRUE(mine_.same_as(theirs_));
}

TEST_F(RowsInC, ActivateGivesTheSame) {
  for (float* data : {mine_.y, theirs_.y}) {
    for (int i = 0; i < kSlots * kWidth; ++i) data[i] = static_cast<float>(i % 7 - 3);
  }
  const ActivateArgs args = valid(mine_, static_cast<ActivateArgs*>(nullptr));
  const cadre_tensor preact = c_view(args.preact), out = c_view(args.out);
  cadre_activate_args c;
  cadre_activate_args_init(&c, sizeof(c));
  EXPECT_EQ(c.activation.alpha, 1.702);
  c.preact = &preact;
  c.activation.kind = CADRE_ACTIVATION_CLAMPED_SWIGLU;
  c.out = &out;
  EXPECT_EQ(cadre_activate(context_, &c), CADRE_OK) << cadre_status_message();
  ASSERT_TRUE(activate(cpp_, valid(theirs_, static_cast<ActivateArgs*>(nullptr))).ok());
  EXPECT_TRUE(mine_.same_as(theirs_));

  const ActivateGradArgs grad = valid(mine_, static_cast<ActivateGradArgs*>(nullptr));
  const cadre_tensor g = c_view(grad.grad), scale = c_view(grad.row_scale),
                     d_preact = c_view(grad.d_preact), activated = c_view(grad.activated),
                     dot = c_view(grad.row_dot);
  cadre_activate_grad_args d;
  cadre_activate_grad_args_init(&d, sizeof(d));
  d.preact = &preact;
  d.grad = &g;
  d.row_scale = &scale;
  d.activation.kind = CADRE_ACTIVATION_SWIGLU;
  d.d_preact = &d_preact;
  d.activated = &activated;
  d.row_dot = &dot;
  EXPECT_EQ(cadre_activate_grad(context_, &d), CADRE_OK) << cadre_status_message();
  ASSERT_TRUE(activate_grad(cpp_, valid(theirs_, static_cast<ActivateGradArgs*>(nullptr))).ok());
  EXPECT_TRUE(mine_.same_as(theirs_));
  d.activation.layout = 5;
  EXPECT_EQ(cadre_activate_grad(context_, &d), CADRE_INVALID);
}

TEST_F(RowsInC, SelectExpertsGivesTheSame) {
  for (float* data : {mine_.logits, theirs_.logits}) {
    for (int i = 0; i < kTokens * kExperts; ++i) data[i] = static_cast<float>(i * 7 % 11);
  }
  const SelectExpertsArgs args = valid(mine_, static_cast<SelectExpertsArgs*>(nullptr));
  const cadre_tensor logits = c_view(args.logits), bias = c_view(args.correction_bias),
                     ids = c_view(args.expert_ids), weights = c_view(args.weights);
  cadre_select_experts_args c;
  cadre_select_experts_args_init(&c, sizeof(c));
  c.logits = &logits;
  c.correction_bias = &bias;
  c.expert_ids = &ids;
  c.weights = &weights;
  EXPECT_EQ(cadre_select_experts(context_, &c), CADRE_OK) << cadre_status_message();
  ASSERT_TRUE(select_experts(cpp_, valid(theirs_, static_cast<SelectExpertsArgs*>(nullptr))).ok());
  EXPECT_TRUE(mine_.same_as(theirs_));
  c.num_groups = 5;
  EXPECT_EQ(cadre_select_experts(context_, &c), CADRE_INVALID);
}

}  // namespace
}  // namespace cadre::tests
