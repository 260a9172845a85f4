// Bad input of MoeMlp: each row gets an error that names the argument, what was expected and what
// was received, and touches nothing. And the C functions: the same bits as the class.
#include "cadre/moe_mlp.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "cadre/c_api.h"
#include "cadre/cadre.h"

namespace cadre::tests {
namespace {

constexpr int64_t kTokens = 4, kTopK = 2, kExperts = 3, kWidth = 6, kInner = 5;
constexpr int64_t kFull = 2 * kInner, kRows = kTokens * kTopK;

/// Everything that a layer reads and writes, in one block that can be compared.
struct Memory {
  int32_t ids[kRows] = {0, 1, 2, 0, 1, 2, 0, 3};  // the last slot is dropped
  int32_t sizes[kExperts] = {};
  int32_t source_row[kRows] = {};
  int32_t slot_row[kRows] = {};
  float x[kTokens * kWidth], weights[kRows], w13[kExperts * kFull * kWidth],
      w2[kExperts * kWidth * kInner], bias13[kExperts * kFull], bias2[kExperts * kWidth],
      dout[kTokens * kWidth];
  float out[kTokens * kWidth], preact[kRows * kFull], dx[kTokens * kWidth], dweights[kRows],
      dw13[kExperts * kFull * kWidth], dw2[kExperts * kWidth * kInner], dbias13[kExperts * kFull],
      dbias2[kExperts * kWidth], d_preact[kRows * kFull], activated[kRows * kInner];

  Memory() {
    std::memset(
        x, 0, static_cast<size_t>(reinterpret_cast<char*>(this + 1) - reinterpret_cast<char*>(x)));
    float value = 0.1f;
    const auto fill = [&](auto& values) {
      for (float& each : values) {
        value = value > 0.9f ? value - 1.7f : value + 0.37f;
        each = value;
      }
    };
    fill(x), fill(weights), fill(w13), fill(w2), fill(bias13), fill(bias2), fill(dout);
    Context context;
    EXPECT_TRUE(route(context, {.expert_ids = i32(ids, {kTokens, kTopK}),
                                .group_sizes = i32(sizes, {kExperts}),
                                .source_row = i32(source_row, {kRows}),
                                .slot_row = i32(slot_row, {kTokens, kTopK})})
                    .ok());
  }

  static TensorView f32(const float* data, std::initializer_list<int64_t> shape) {
    return TensorView::contiguous(data, DType::kF32, shape);
  }
  static TensorView i32(const int32_t* data, std::initializer_list<int64_t> shape) {
    return TensorView::contiguous(data, DType::kI32, shape);
  }
  bool same_as(const Memory& other) const { return std::memcmp(this, &other, sizeof(*this)) == 0; }

  MoeMlpWeights parameters() {
    return {.w13 = f32(w13, {kExperts, kFull, kWidth}),
            .w2 = f32(w2, {kExperts, kWidth, kInner}),
            .bias13 = GroupedTensor::vectors(f32(bias13, {kExperts, kFull})),
            .bias2 = GroupedTensor::vectors(f32(bias2, {kExperts, kWidth}))};
  }
  MoeMlpForwardArgs forward() {
    return {.x = f32(x, {kTokens, kWidth}),
            .routing = {.group_sizes = {sizes, DType::kI32, kExperts},
                        .source_row = i32(source_row, {kRows}),
                        .slot_row = i32(slot_row, {kTokens, kTopK}),
                        .weights = f32(weights, {kTokens, kTopK})},
            .out = f32(out, {kTokens, kWidth}),
            .preact = f32(preact, {kRows, kFull})};
  }
  MoeMlpBackwardArgs backward() {
    return {.dout = f32(dout, {kTokens, kWidth}),
            .dx = f32(dx, {kTokens, kWidth}),
            .dweights = f32(dweights, {kTokens, kTopK}),
            .dw13 = f32(dw13, {kExperts, kFull, kWidth}),
            .dw2 = f32(dw2, {kExperts, kWidth, kInner}),
            .dbias13 = GroupedTensor::vectors(f32(dbias13, {kExperts, kFull})),
            .dbias2 = GroupedTensor::vectors(f32(dbias2, {kExperts, kWidth})),
            .d_preact = f32(d_preact, {kRows, kFull}),
            .activated = f32(activated, {kRows, kInner})};
  }
};

struct Call {
  MoeMlpWeights weights;
  MoeMlpOptions options{};
  MoeMlpForwardArgs forward;
  MoeMlpSaved saved;
  MoeMlpBackwardArgs backward;

  explicit Call(Memory& m) : weights(m.parameters()), forward(m.forward()), backward(m.backward()) {
    saved = {.x = forward.x, .preact = forward.preact, .routing = forward.routing};
  }
};

struct Row {
  std::function<void(Call&, Memory&)> spoil;
  const char* message;
};

void expect_errors(const std::vector<Row>& rows, bool backward) {
  Context context;
  const auto run = [&](Call& call) {
    MoeMlp layer(call.weights, call.options);
    return backward ? layer.backward(context, call.saved, call.backward)
                    : layer.forward(context, call.forward);
  };
  Memory good;
  const Memory before_good = good;
  Call valid(good);
  ASSERT_TRUE(run(valid).ok()) << run(valid).message();
  ASSERT_FALSE(good.same_as(before_good)) << "the valid call must write";
  for (const Row& row : rows) {
    Memory memory;
    Call call(memory);
    row.spoil(call, memory);
    const Memory before = memory;
    const Status status = run(call);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << row.message;
    EXPECT_EQ(status.message(), row.message);
    EXPECT_TRUE(memory.same_as(before)) << row.message;
  }
}

TEST(MoeMlpErrors, Forward) {
  expect_errors(
      {{[](Call& c, Memory&) { c.forward.x = {}; },
        "moe_mlp: x = nothing, expected a tensor of rank 2"},
       {[](Call& c, Memory& m) {
          c.weights.w13 = Memory::f32(m.w13, {kExperts, 9, kWidth});
        },
        "moe_mlp: w13.rows = 9, expected an even number: a gate and an up part for each result"},
       {[](Call& c, Memory& m) {
          c.weights.w13 = Memory::f32(m.w13, {kExperts, kFull, 5});
        },
        "moe_mlp: w13 = [10, 5] with strides [5, 1], expected matrices of [2i, h] = "
        "[10, 6]"},
       {[](Call& c, Memory&) { c.weights.transposed = true; },
        "moe_mlp: w13 = [10, 6] with strides [6, 1], expected matrices of [h, 2i] = "
        "[6, 6]"},
       {[](Call& c, Memory& m) {
          c.weights.w2 = Memory::f32(m.w2, {kExperts, kInner, kWidth});
        },
        "moe_mlp: w2 = [5, 6] with strides [6, 1], expected matrices of [h, i] = [6, "
        "5]"},
       {[](Call& c, Memory& m) {
          c.weights.w2 = Memory::f32(m.w2, {2, kWidth, kInner});
        },
        "moe_mlp: w2.num_groups = 2, expected w13.num_groups = 3"},
       {[](Call& c, Memory&) { c.weights.w13.dtype = DType::kI32; },
        "moe_mlp: w13.dtype = i32, expected i8, the one integer type of products, or a float type"},
       {[](Call& c, Memory& m) {
          c.weights.bias2 = GroupedTensor::vectors(Memory::f32(m.bias2, {kExperts, 5}));
        },
        "moe_mlp: bias2.n = 5, expected 6"},
       {[](Call& c, Memory& m) {
          c.forward.routing.slot_row = Memory::f32(m.weights, {kTokens, kTopK});
        },
        "moe_mlp: slot_row.dtype = f32, expected i32 or i64"},
       {[](Call& c, Memory& m) {
          c.forward.routing.slot_row = Memory::i32(m.slot_row, {3, kTopK});
        },
        "moe_mlp: slot_row.shape[0] = 3, expected x.shape[0] = 4"},
       {[](Call&, Memory& m) { m.source_row[2] = 4; },
        "moe_mlp: source_row[2] = 4, expected -1 or 0 to x.shape[0] - 1 = 3"},
       {[](Call&, Memory& m) { m.slot_row[1] = 8; },
        "moe_mlp: slot_row[0, 1] = 8, expected -1 or 0 to source_row.shape[0] - 1 = 7"},
       {[](Call& c, Memory& m) {
          c.forward.routing.weights = Memory::f32(m.weights, {kTopK, kTokens});
        },
        "moe_mlp: weights.shape = [2, 4], expected the shape of slot_row = [4, 2]"},
       {[](Call& c, Memory& m) {
          c.forward.preact = Memory::f32(m.preact, {kRows, kInner});
        },
        "moe_mlp: preact.shape = [8, 5], expected [m, 2i] = [8, 10]"},
       {[](Call& c, Memory&) { c.forward.preact.dtype = DType::kBF16; },
        "moe_mlp: preact.dtype = bf16, expected x.dtype = f32"},
       {[](Call& c, Memory&) { c.forward.routing.source_row = {}; },
        "moe_mlp: slot_row = given, expected none because there is no source_row"},
       {[](Call& c, Memory&) {
          c.forward.routing.source_row = {};
          c.forward.routing.slot_row = {};
        },
        "moe_mlp: weights = given, expected none because there is no source_row"},
       {[](Call& c, Memory& m) {
          m.sizes[0] = 0;
          c.forward.residual = c.forward.x;
          c.forward.routing = {.group_sizes = c.forward.routing.group_sizes};
        },
        "moe_mlp: residual = given, expected none because there is no source_row"},
       {[](Call& c, Memory&) { c.forward.out = {}; },
        "moe_mlp: out = nothing, expected a tensor of rank 2"},
       {[](Call& c, Memory&) { c.forward.out = c.forward.x; },
        "moe_mlp: out overlaps x, expected separate memory"},
       {[](Call& c, Memory& m) {
          c.forward.residual = Memory::f32(m.preact, {kTokens, kWidth});
        },
        "moe_mlp: preact overlaps residual, expected separate memory"},
       {[](Call& c, Memory&) { c.forward.options.config = "reference"; },
        "moe_mlp: options.config = given, expected none because a layer is several kernels"},
       {[](Call& c, Memory& m) {
          c.forward.options.workspace = m.dw13;
          c.forward.options.workspace_size_bytes = 16;
        },
        "moe_mlp: options.workspace_size_bytes = 16, expected at least 768"},
       {[](Call& c, Memory&) { c.options.activation.kind = static_cast<ActivationKind>(11); },
        "moe_mlp: activation.kind = 11, expected 0 (none) to 8 (clamped swiglu)"}},
      false);
}

TEST(MoeMlpErrors, Backward) {
  expect_errors(
      {{[](Call& c, Memory&) { c.saved.preact = {}; },
        "moe_mlp: saved.preact = nothing, expected the pre-activation that forward() wrote"},
       {[](Call& c, Memory&) { c.backward.dout = {}; },
        "moe_mlp: dout = nothing, expected a tensor of rank 2"},
       {[](Call& c, Memory& m) {
          c.backward.dx = Memory::f32(m.dx, {kTokens, 5});
        },
        "moe_mlp: dx.shape = [4, 5], expected [t, h] = [4, 6]"},
       {[](Call& c, Memory&) { c.saved.routing.weights = {}; },
        "moe_mlp: dweights = given, expected none because forward() had no weights"},
       {[](Call& c, Memory& m) {
          c.backward.dw2 = Memory::f32(m.dw2, {kExperts, kInner, kWidth});
        },
        "moe_mlp: dw2 = [5, 6] with strides [6, 1], expected matrices of w2's shape = "
        "[6, 5]"},
       {[](Call& c, Memory&) { c.weights.bias13 = {}; },
        "moe_mlp: dbias13 = given, expected none because there is no bias13"},
       {[](Call& c, Memory&) {
          c.options.delay_wgrad = true;
          c.backward.d_preact = {};
        },
        "moe_mlp: d_preact = nothing, expected a tensor of rank 2 that backward_dw() reads for "
        "dw13"},
       {[](Call& c, Memory&) {
          c.options.delay_wgrad = true;
          c.backward.activated = {};
        },
        "moe_mlp: activated = nothing, expected a tensor of rank 2 that backward_dw() reads for "
        "dw2"},
       {[](Call& c, Memory&) { c.backward.dx = c.backward.dout; },
        "moe_mlp: dx overlaps dout, expected separate memory"},
       {[](Call& c, Memory& m) {
          c.backward.dw13 = Memory::f32(m.w13, {kExperts, kFull, kWidth});
        },
        "moe_mlp: dw13 overlaps w13, expected separate memory"}},
      true);
}

TEST(MoeMlp, GivesOnlyWhatIsAskedFor) {
  Context context;
  Memory all;
  Call whole(all);
  MoeMlp layer(whole.weights);
  ASSERT_TRUE(layer.forward(context, whole.forward).ok());
  const Memory forward = all;
  ASSERT_TRUE(layer.backward(context, whole.saved, whole.backward).ok());
  const auto same = [](const auto& a, const auto& b) { return std::memcmp(a, b, sizeof(a)) == 0; };
  Memory one = forward;
  Call call(one);
  call.backward = {.dout = call.backward.dout, .dweights = call.backward.dweights};
  ASSERT_TRUE(layer.backward(context, call.saved, call.backward).ok());
  EXPECT_TRUE(same(one.dweights, all.dweights));
  EXPECT_TRUE(same(one.dx, forward.dx) && same(one.dw13, forward.dw13));
  Memory two = forward;
  Call weights_only(two);
  weights_only.backward = {.dout = weights_only.backward.dout, .dw2 = weights_only.backward.dw2};
  ASSERT_TRUE(layer.backward(context, weights_only.saved, weights_only.backward).ok());
  EXPECT_TRUE(same(two.dw2, all.dw2) && same(two.dweights, forward.dweights));
  Memory none = forward;
  Call nothing(none);
  nothing.backward = {.dout = nothing.backward.dout};
  ASSERT_TRUE(layer.backward(context, nothing.saved, nothing.backward).ok());
  EXPECT_TRUE(none.same_as(forward));
}

TEST(MoeMlp, DelayedGradientsWaitForBackwardDw) {
  Context context;
  Memory memory;
  Call call(memory);
  MoeMlp layer(call.weights, {.delay_wgrad = true});
  MoeMlpSaved saved;
  EXPECT_TRUE(layer.backward_dw(context).ok());  // nothing waits
  ASSERT_TRUE(layer.forward(context, call.forward, &saved).ok());
  ASSERT_TRUE(layer.backward(context, saved, call.backward).ok());
  EXPECT_EQ(layer.pending_wgrads(), 1u);
  const float untouched[4] = {};
  EXPECT_EQ(std::memcmp(memory.dw13, untouched, sizeof(untouched)), 0);
  ASSERT_TRUE(layer.backward_dw(context).ok());
  EXPECT_EQ(layer.pending_wgrads(), 0u);
  EXPECT_NE(std::memcmp(memory.dw13, untouched, sizeof(untouched)), 0);
}

/// C views of everything in a Call.
class CCall {
 public:
  explicit CCall(Call& call) {
    cadre_moe_mlp_args_init(&args, sizeof(args));
    args.w13 = grouped(
        0, Memory::f32(static_cast<float*>(call.weights.w13.data), {kExperts, kFull, kWidth}));
    args.w2 = grouped(
        1, Memory::f32(static_cast<float*>(call.weights.w2.data), {kExperts, kWidth, kInner}));
    args.bias13 = vectors(2, call.weights.bias13, kFull);
    args.bias2 = vectors(3, call.weights.bias2, kWidth);
    args.group_sizes = {call.forward.routing.group_sizes.data, CADRE_I32, {0, 0}, kExperts, 0};
    args.x = view(0, call.forward.x);
    args.source_row = view(1, call.forward.routing.source_row);
    args.slot_row = view(2, call.forward.routing.slot_row);
    args.weights = view(3, call.forward.routing.weights);
    args.preact = view(4, call.forward.preact);
    args.out = view(5, call.forward.out);
    args.dout = view(6, call.backward.dout);
    args.dx = view(7, call.backward.dx);
    args.dweights = view(8, call.backward.dweights);
    args.d_preact = view(9, call.backward.d_preact);
    args.activated = view(10, call.backward.activated);
    args.dw13 = grouped(
        4, Memory::f32(static_cast<float*>(call.backward.dw13.data), {kExperts, kFull, kWidth}));
    args.dw2 = grouped(
        5, Memory::f32(static_cast<float*>(call.backward.dw2.data), {kExperts, kWidth, kInner}));
    args.dbias13 = vectors(6, call.backward.dbias13, kFull);
    args.dbias2 = vectors(7, call.backward.dbias2, kWidth);
  }

  cadre_moe_mlp_args args;

 private:
  static cadre_tensor to_c(const TensorView& view) {
    return cadre_tensor_contiguous(view.data, static_cast<cadre_dtype>(view.dtype), view.rank,
                                   view.shape.data(), {0, 0});
  }
  const cadre_tensor* view(size_t i, const TensorView& given) {
    views_[i] = to_c(given);
    return &views_[i];
  }
  const cadre_grouped_tensor* grouped(size_t i, const TensorView& given) {
    const cadre_tensor tensor = to_c(given);
    grouped_[i] = cadre_grouped_from_tensor(&tensor);
    return &grouped_[i];
  }
  const cadre_grouped_tensor* vectors(size_t i, const GroupedTensor& given, int64_t n) {
    const cadre_tensor tensor = to_c(Memory::f32(static_cast<float*>(given.data), {kExperts, n}));
    grouped_[i] = cadre_grouped_vectors(&tensor);
    return &grouped_[i];
  }

  cadre_tensor views_[11];
  cadre_grouped_tensor grouped_[8];
};

TEST(MoeMlpInC, GivesTheSame) {
  for (const bool delayed : {false, true}) {
    Context context;
    Memory theirs;
    Call call(theirs);
    MoeMlp layer(call.weights, {.delay_wgrad = delayed});
    ASSERT_TRUE(layer.forward(context, call.forward).ok());
    ASSERT_TRUE(layer.backward(context, call.saved, call.backward).ok());
    ASSERT_TRUE(layer.backward_dw(context).ok());

    cadre_context* c_context = nullptr;
    ASSERT_EQ(cadre_context_create(nullptr, &c_context), CADRE_OK);
    Memory mine;
    Call source(mine);
    CCall c(source);
    c.args.delay_wgrad = delayed ? 1 : 0;
    EXPECT_EQ(c.args.activation.kind, CADRE_ACTIVATION_SWIGLU);
    size_t bytes = 0;
    EXPECT_EQ(cadre_moe_mlp_forward_workspace_size(c_context, &c.args, &bytes), CADRE_OK);
    EXPECT_GT(bytes, 0u);
    EXPECT_EQ(cadre_moe_mlp_forward(c_context, &c.args), CADRE_OK) << cadre_status_message();
    EXPECT_EQ(cadre_moe_mlp_backward_workspace_size(c_context, &c.args, &bytes), CADRE_OK);
    EXPECT_EQ(cadre_moe_mlp_backward(c_context, &c.args), CADRE_OK) << cadre_status_message();
    if (delayed) {
      EXPECT_EQ(cadre_moe_mlp_backward_dw(c_context, &c.args), CADRE_OK) << cadre_status_message();
    }
    EXPECT_TRUE(mine.same_as(theirs)) << delayed;
    c.args.preact = nullptr;
    EXPECT_EQ(cadre_moe_mlp_backward(c_context, &c.args), CADRE_INVALID);
    EXPECT_STREQ(cadre_status_message(),
                 "moe_mlp: saved.preact = nothing, expected the pre-activation that forward() "
                 "wrote");
    cadre_context_destroy(c_context);
  }
}

TEST(MoeMlp, PackedWeightsHaveTheSameBits) {
  Context context;
  Memory plain, mine, theirs;
  Call call(plain);
  ASSERT_TRUE(MoeMlp(call.weights).forward(context, call.forward).ok());

  Call packed(mine);
  PackedWeights w13, w2;
  const auto pack = [&](const GroupedTensor& rhs, PackedWeights* to) {
    return pack_weights(context, {.rhs = rhs, .transpose_rhs = true}, to);
  };
  ASSERT_TRUE(pack(packed.weights.w13, &w13).ok());
  ASSERT_TRUE(pack(packed.weights.w2, &w2).ok());
  packed.weights.packed_w13 = &w13;
  packed.weights.packed_w2 = &w2;
  ASSERT_TRUE(MoeMlp(packed.weights).forward(context, packed.forward).ok());
  EXPECT_TRUE(mine.same_as(plain));
  packed.weights.packed_w2 = &w13;
  EXPECT_EQ(MoeMlp(packed.weights).forward(context, packed.forward).message(),
            "moe_mlp: w2: gmm: packed_rhs = f32 [3, k 6, n 10], expected rhs = f32 [3, k 5, n 6]");

  cadre_context* c_context = nullptr;
  ASSERT_EQ(cadre_context_create(nullptr, &c_context), CADRE_OK);
  Call source(theirs);
  CCall c(source);
  const auto pack_in_c = [&](const cadre_grouped_tensor* rhs) {
    cadre_pack_weights_args args;
    cadre_pack_weights_args_init(&args, sizeof(args));
    args.rhs = rhs;
    args.transpose_rhs = 1;
    cadre_packed_weights* handle = nullptr;
    EXPECT_EQ(cadre_pack_weights(c_context, &args, &handle), CADRE_OK) << cadre_status_message();
    return handle;
  };
  cadre_packed_weights* c_w13 = pack_in_c(c.args.w13);
  cadre_packed_weights* c_w2 = pack_in_c(c.args.w2);
  EXPECT_EQ(cadre_packed_weights_size_bytes(c_w13), w13.size_bytes());
  EXPECT_EQ(cadre_packed_weights_kernel(c_w13), w13.kernel());
  c.args.packed_w13 = c_w13;
  c.args.packed_w2 = c_w2;
  EXPECT_EQ(cadre_moe_mlp_forward(c_context, &c.args), CADRE_OK) << cadre_status_message();
  EXPECT_TRUE(theirs.same_as(plain));
  EXPECT_EQ(cadre_pack_weights(c_context, nullptr, &c_w13), CADRE_INVALID);
  cadre_packed_weights_destroy(const_cast<cadre_packed_weights*>(c.args.packed_w13));
  cadre_packed_weights_destroy(c_w2);
  cadre_packed_weights_destroy(nullptr);
  EXPECT_EQ(cadre_packed_weights_size_bytes(nullptr), 0u);
  cadre_context_destroy(c_context);
}

}  // namespace
}  // namespace cadre::tests
