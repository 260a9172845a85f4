// Bad input of quantize, dequantize and amax: an error that names op, argument, expected and
// received, before anything is written.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>

#include "cadre/cadre.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 6, kK = 40, kGroups = 3;
constexpr int64_t kCapacity = column_capacity(kM, kGroups);
constexpr int64_t kLines = column_scale_capacity(kM, kGroups, 128);

/// Memory of a small, valid call; outputs are a pattern that nothing may change.
struct Memory {
  float x[kM * kK] = {};
  float weights[kM] = {};
  int32_t sizes[kGroups] = {2, 1, 3};
  int32_t too_many[kGroups] = {2, 1, 4};
  int32_t source[kM] = {0, 5, -1, 2, 2, 3};
  int32_t bad_source[kM] = {0, 5, -1, 6, 2, 3};
  struct Outputs {
    uint8_t rows[kM * kK];
    uint8_t columns[kK * kCapacity];
    float row_scales[kM];
    float column_scales[kLines * kK];
    float plain[kM * kK];
  } out;

  Memory() { std::memset(&out, 0x5a, sizeof(out)); }
  bool untouched() const {
    const Memory fresh;
    return std::memcmp(&out, &fresh.out, sizeof(out)) == 0;
  }
  TensorView data(std::initializer_list<int64_t> shape, DType dtype = DType::kF32) const {
    return TensorView::contiguous(x, dtype, shape);
  }
};

TensorView f32(const float* data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data, DType::kF32, shape);
}
TensorView e4m3(const uint8_t* data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data, DType::kE4M3, shape);
}

QuantizeArgs valid(Memory& m, const QuantizeArgs* /*tag*/) {
  QuantizeArgs args{.x = m.data({kM, kK})};
  args.group_sizes = {m.sizes, DType::kI32, kGroups};
  args.rows = ScaledTensor(e4m3(m.out.rows, {kM, kK}),
                           Scales(ScaleMode::kBlock128, f32(m.out.row_scales, {kM, 1})));
  args.columns = ScaledTensor::column_wise(
      e4m3(m.out.columns, {kK, kCapacity}),
      Scales(ScaleMode::kBlock128, f32(m.out.column_scales, {kLines, kK})));
  return args;
}
DequantizeArgs valid(Memory& m, const DequantizeArgs* /*tag*/) {
  return {
      .x = ScaledTensor(e4m3(m.out.rows, {kM, kK}), Scales(ScaleMode::kRow, f32(m.weights, {kM}))),
      .out = f32(m.out.plain, {kM, kK})};
}
AmaxArgs valid(Memory& m, const AmaxArgs* /*tag*/) {
  return {.x = m.data({kM, kK}), .mode = ScaleMode::kRow, .out = f32(m.out.row_scales, {kM})};
}

Status call(Context& context, const QuantizeArgs& args) { return quantize(context, args); }
Status call(Context& context, const DequantizeArgs& args) { return dequantize(context, args); }
Status call(Context& context, const AmaxArgs& args) { return amax(context, args); }
Status size(Context& context, const QuantizeArgs& args, size_t* bytes) {
  return quantize_workspace_size(context, args, bytes);
}
Status size(Context& context, const DequantizeArgs& args, size_t* bytes) {
  return dequantize_workspace_size(context, args, bytes);
}
Status size(Context& context, const AmaxArgs& args, size_t* bytes) {
  return amax_workspace_size(context, args, bytes);
}

template <typename Args>
struct Row {
  std::function<void(Args&, Memory&)> spoil;
  const char* message;
};

template <typename Args>
void expect_errors(const std::vector<Row<Args>>& table) {
  Context context;
  const Args* const tag = nullptr;
  Memory good;
  ASSERT_TRUE(call(context, valid(good, tag)).ok()) << call(context, valid(good, tag)).message();
  ASSERT_FALSE(good.untouched()) << "the valid call must write, or the test shows nothing";
  for (const Row<Args>& row : table) {
    Memory memory;
    Args args = valid(memory, tag);
    row.spoil(args, memory);
    const Status status = call(context, args);
    EXPECT_EQ(status.code(), StatusCode::kInvalid) << row.message;
    EXPECT_EQ(status.message(), row.message);
    size_t bytes = 0;
    EXPECT_EQ(size(context, args, &bytes).message(), row.message);
    EXPECT_TRUE(memory.untouched()) << row.message;
  }
}

TEST(BadInputQuantize, NamesTheArgument) {
  constexpr int64_t kHuge = int64_t{1} << 47;
  expect_errors<QuantizeArgs>({
      {[](auto& a, auto&) { a.x = {}; }, "quantize: x = nothing, expected a tensor of rank 2"},
      {[](auto& a, auto&) { a.x.dtype = DType::kF64; },
       "quantize: x.dtype = f64, expected f32, bf16 or f16"},
      {[](auto& a, auto&) { a.rows = {}, a.columns = {}; },
       "quantize: rows and columns = nothing, expected at least one of them"},
      {[](auto& a, auto&) { a.rows.dtype = DType::kI8; },
       "quantize: rows.dtype = i8, expected e4m3 or e5m2"},
      {[](auto& a, auto&) { a.rows.shape[0] = 5; },
       "quantize: rows.shape = [5, 40], expected [m, k] = [6, 40]"},
      {[](auto& a, auto&) { a.rows.scales = {}; },
       "quantize: rows.scales = nothing, expected scales because rows.dtype = e4m3"},
      {[](auto& a, auto&) { a.rows.scales.mode = static_cast<ScaleMode>(7); },
       "quantize: rows.scales.mode = 7, expected 1 (tensor), 2 (row), 3 (block_128) or 4 (mx)"},
      {[](auto& a, auto&) { a.rows.scales.values.dtype = DType::kBF16; },
       "quantize: rows.scales.dtype = bf16, expected f32 or e8m0"},
      {[](auto& a, auto&) { a.rows.scales.values.shape[1] = 2; },
       "quantize: rows.scales.shape = [6, 2], expected [6, 1] because rows.scales.mode = "
       "block_128"},
      {[](auto& a, auto& m) {
         a.rows.scales = Scales(ScaleMode::kRow, f32(m.out.row_scales, {kM}));
       },
       "quantize: columns.scales.mode = block_128, expected row, the mode of rows"},
      {[](auto& a, auto&) { a.columns.columns = false; },
       "quantize: columns.columns = false, expected true: a column-wise copy"},
      {[](auto& a, auto&) { a.columns.shape[0] = 39; },
       "quantize: columns.shape[0] = 39, expected k = 40"},
      {[](auto& a, auto&) { a.columns.shape[1] = 64; },
       "quantize: columns.shape[1] = 64, expected at least 96: each group's rows begin on a "
       "multiple of 32"},
      {[](auto& a, auto&) { a.columns.scales.values.shape[0] = 2; },
       "quantize: columns.scales.shape[0] = 2, expected at least 3: each group has blocks of 128 "
       "rows of its own"},
      {[](auto& a, auto& m) { a.group_sizes.data = m.too_many; },
       "quantize: sum of group_sizes[0..2] = 3 + 4, expected at most m = 6"},
      {[](auto& a, auto& m) {
         a.source_row = TensorView::contiguous(m.bad_source, DType::kI32, {kM});
       },
       "quantize: source_row[3] = 6, expected -1 or 0 to x.shape[0] - 1 = 5"},
      {[](auto& a, auto& m) { a.row_scale = f32(m.weights, {kM - 1}); },
       "quantize: row_scale.shape[0] = 5, expected m = 6"},
      {[](auto& a, auto&) { a.activation.kind = static_cast<ActivationKind>(9); },
       "quantize: activation.kind = 9, expected 0 (none) to 8 (clamped swiglu)"},
      {[](auto& a, auto&) { a.activation.kind = ActivationKind::kSwiglu, a.x.shape[1] = 39; },
       "quantize: x.shape[1] = 39, expected an even number: a gate and an up part for each result"},
      {[](auto& a, auto&) { a.amax_floor = -1; },
       "quantize: amax_floor = -1, expected 0 to the largest f32"},
      {[](auto& a, auto&) { a.amax_floor = std::numeric_limits<double>::quiet_NaN(); },
       "quantize: amax_floor = nan, expected 0 to the largest f32"},
      {[](auto& a, auto&) { a.rows.strides[0] = 0; },
       "quantize: rows overlaps itself, expected every element at its own address"},
      {[](auto& a, auto& m) {
         a.x = m.data({1, kM, kK});
       },
       "quantize: group_sizes = given, expected none because x is [g, n, k]"},
      {[](auto& a, auto& m) {
         a.group_sizes = {};
         a.x = m.data({kHuge, kHuge, 0});
       },
       "quantize: x.shape[0] = 140737488355328, expected at most 2^24 groups"},
      {[](auto& a, auto& m) {
         a.group_sizes = {};
         a.x = m.data({4, kHuge, 0});
       },
       "quantize: x.shape[1] = 140737488355328, expected at most 2^48 rows of all groups"},
      {[](auto& a, auto& m) {
         a.group_sizes = {};
         a.x = m.data({1, kM, kK});
         a.columns = {};
       },
       "quantize: rows.rank = 2, expected 3 (rows.shape = [6, 40])"},
  });
}

TEST(BadInputDequantize, NamesTheArgument) {
  expect_errors<DequantizeArgs>({
      {[](auto& a, auto&) { a.x.dtype = DType::kI8; },
       "dequantize: x.dtype = i8, expected e4m3 or e5m2"},
      {[](auto& a, auto&) { a.x.scales = {}; },
       "dequantize: x.scales = nothing, expected scales because x.dtype = e4m3"},
      {[](auto& a, auto&) { a.x.scales.values.shape[0] = 5; },
       "dequantize: x.scales.shape = [5], expected [6] because x.scales.mode = row"},
      {[](auto& a, auto&) { a.out.shape[1] = 39; },
       "dequantize: out.shape = [6, 39], expected [m, k] = [6, 40]"},
      {[](auto& a, auto&) { a.out.dtype = DType::kF64; },
       "dequantize: out.dtype = f64, expected f32, bf16 or f16"},
      {[](auto& a, auto& m) {
         a.out = f32(m.weights, {kM, 1}), a.x.shape[1] = 1;
       },
       "dequantize: out overlaps x.scales, expected separate memory"},
  });
}

TEST(BadInputAmax, NamesTheArgument) {
  expect_errors<AmaxArgs>({
      {[](auto& a, auto&) { a.mode = ScaleMode::kNone; },
       "amax: mode = 0, expected 1 (tensor), 2 (row), 3 (block_128) or 4 (mx)"},
      {[](auto& a, auto&) { a.out = {}; }, "amax: out = nothing, expected a tensor of rank 1"},
      {[](auto& a, auto&) { a.out.dtype = DType::kE8M0; }, "amax: out.dtype = e8m0, expected f32"},
      {[](auto& a, auto&) { a.mode = ScaleMode::kMx; },
       "amax: out.shape = [6], expected [6, 2] because mode = mx"},
  });
}

}  // namespace
}  // namespace cadre::tests
