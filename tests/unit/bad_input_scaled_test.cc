// Bad input of products on scaled operands: an error names the field and what it needs.
#include "tests/unit/bad_input.h"

namespace cadre::tests {
namespace {

// Sizes 2, 1, 3 of bad_input.h: a column-wise copy has 3 * 32 columns and 3 lines of blocks.
constexpr int64_t kColumns = 96;

/// Memory of the scales and the FP8 data, apart from the other arrays. All zero.
struct ScaledArrays {
  uint8_t lhs[kK * kColumns] = {};
  uint8_t rhs[kN * kColumns] = {};
  float lhs_scales[kColumns] = {};
  float rhs_scales[kColumns] = {};
  uint8_t exponents[kColumns] = {};
  float other[kColumns] = {};
  void* pointers[kGroups] = {rhs_scales, rhs_scales, rhs_scales};
  void* null_in_list[kGroups] = {rhs_scales, nullptr, rhs_scales};
};
ScaledArrays arrays;

TensorView e4m3(const uint8_t* data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data, DType::kE4M3, shape);
}
TensorView e8m0(const uint8_t* data, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(data, DType::kE8M0, shape);
}

GmmArgs valid_gmm(Arrays& a) {
  GmmArgs args;
  args.lhs = {e4m3(arrays.lhs, {kM, kK}), {ScaleMode::kBlock128, f32(arrays.lhs_scales, {kM, 1})}};
  args.rhs = {e4m3(arrays.rhs, {kGroups, kK, kN}),
              {ScaleMode::kBlock128, f32(arrays.rhs_scales, {kGroups, 1, 1})}};
  args.out = f32(a.out, {kM, kN});
  args.group_sizes = a.group_sizes();
  return args;
}

const Row<GmmArgs> kGmmRows[] = {
    {"no scales", [](GmmArgs& g, Arrays&) { g.lhs.scales = {}; },
     "gmm: lhs.scales = nothing, expected scales because lhs.dtype = e4m3"},
    {"no scales of weights", [](GmmArgs& g, Arrays&) { g.rhs.scales = {}; },
     "gmm: rhs.scales = nothing, expected scales because rhs.dtype = e4m3"},
    {"a mode without values", [](GmmArgs& g, Arrays&) { g.lhs.scales.values = {}; },
     "gmm: lhs.scales = nothing, expected a tensor of scales"},
    {"unknown mode", [](GmmArgs& g, Arrays&) { g.rhs.scales.mode = static_cast<ScaleMode>(7); },
     "gmm: rhs.scales.mode = 7, expected 1 (tensor), 2 (row), 3 (block_128) or 4 (mx)"},
    {"scales without data", [](GmmArgs& g, Arrays&) { g.rhs.scales.values.data = nullptr; },
     "gmm: rhs.scales.data = null, expected a pointer"},
    {"scales of another shape",
     [](GmmArgs& g, Arrays&) {
       g.lhs.scales.values.shape = {kM, 2};
     },
     "gmm: lhs.scales.shape = [6, 2], expected [6, 1] because lhs.scales.mode = block_128"},
    {"scales of another rank",
     [](GmmArgs& g, Arrays&) {
       g.rhs.scales.values = f32(arrays.rhs_scales, {kGroups, 1});
     },
     "gmm: rhs.scales.shape = [3, 1], expected [3, 1, 1] because rhs.scales.mode = block_128"},
    {"row scales of the rows of another tensor",
     [](GmmArgs& g, Arrays&) {
       g.lhs.scales = {ScaleMode::kRow, f32(arrays.lhs_scales, {kM - 1})};
     },
     "gmm: lhs.scales.shape = [5], expected [6] because lhs.scales.mode = row"},
    {"tensor scales of too many groups",
     [](GmmArgs& g, Arrays&) {
       g.lhs.scales = {ScaleMode::kTensor, f32(arrays.lhs_scales, {1})};
       g.rhs.scales = {ScaleMode::kTensor, f32(arrays.rhs_scales, {kGroups + 1})};
     },
     "gmm: rhs.scales.shape = [4], expected [1] or [3] because rhs.scales.mode = tensor"},
    {"mx scales of blocks of 128",
     [](GmmArgs& g, Arrays&) {
       g.lhs.scales = {ScaleMode::kMx, e8m0(arrays.exponents, {kM, 1})};
       g.rhs.scales = {ScaleMode::kMx, e8m0(arrays.exponents, {kGroups, 1, 1})};
     },
     "gmm: rhs.scales.shape = [3, 1, 1], expected [3, 1, 5] because rhs.scales.mode = mx"},
    {"scales of another type",
     [](GmmArgs& g, Arrays&) { g.lhs.scales.values.dtype = DType::kBF16; },
     "gmm: lhs.scales.dtype = bf16, expected f32 or e8m0"},
    {"row scales in e8m0",
     [](GmmArgs& g, Arrays&) {
       g.lhs.scales = {ScaleMode::kRow, e8m0(arrays.exponents, {kM})};
     },
     "gmm: lhs.scales.dtype = e8m0, expected f32"},
    {"mx scales in f32", [](GmmArgs& g, Arrays&) { g.lhs.scales.mode = ScaleMode::kMx; },
     "gmm: lhs.scales.dtype = f32, expected e8m0"},
    {"mixed modes",
     [](GmmArgs& g, Arrays&) {
       g.rhs.scales = {ScaleMode::kTensor, f32(arrays.rhs_scales, {1})};
     },
     "gmm: rhs.scales.mode = tensor, expected block_128 because lhs.scales.mode = block_128"},
    {"blocks with rows",
     [](GmmArgs& g, Arrays&) {
       g.lhs.scales = {ScaleMode::kRow, f32(arrays.lhs_scales, {kM})};
     },
     "gmm: rhs.scales.mode = block_128, expected tensor or row because lhs.scales.mode = row"},
    {"e5m2 x e5m2", [](GmmArgs& g, Arrays&) { g.lhs.dtype = g.rhs.dtype = DType::kE5M2; },
     "gmm: rhs.dtype = e5m2, expected e4m3 because lhs.dtype = e5m2"},
    {"fp8 x bf16", [](GmmArgs& g, Arrays&) { g.rhs.dtype = DType::kBF16; },
     "gmm: rhs.dtype = bf16, expected e4m3 or e5m2 because lhs.dtype = e4m3"},
    {"scales of f32", [](GmmArgs& g, Arrays&) { g.lhs.dtype = g.rhs.dtype = DType::kI8; },
     "gmm: lhs.scales = given, expected none because lhs.dtype = i8"},
    {"an output in fp8", [](GmmArgs& g, Arrays&) { g.out.dtype = DType::kE4M3; },
     "gmm: out.dtype = e4m3, expected f32, bf16 or f16 because lhs.dtype = e4m3"},
    {"an output in f64", [](GmmArgs& g, Arrays&) { g.out.dtype = DType::kF64; },
     "gmm: out.dtype = f64, expected f32, bf16 or f16 because lhs.dtype = e4m3"},
    {"a list of scales with a null",
     [](GmmArgs& g, Arrays&) {
       g.rhs.scales =
           Scales::list(ScaleMode::kBlock128, arrays.null_in_list, f32(arrays.rhs_scales, {1, 1}));
     },
     "gmm: rhs.scales.pointers[1] = null, expected a pointer"},
    {"a list of scales for rows",
     [](GmmArgs& g, Arrays&) {
       g.lhs.scales =
           Scales::list(ScaleMode::kBlock128, arrays.pointers, f32(arrays.rhs_scales, {kM, 1}));
     },
     "gmm: lhs.scales.pointers = given, expected one tensor of scales because lhs is one tensor"},
    {"scales on another device",
     [](GmmArgs& g, Arrays&) { g.lhs.scales.values.device.kind = DeviceKind::kCuda; },
     "gmm: lhs.scales.device = cuda:0, expected lhs.device = cpu"},
    {"out over scales", [](GmmArgs& g, Arrays& a) { g.rhs.scales.values.data = a.out + 3; },
     "gmm: out overlaps rhs.scales, expected separate memory"},
    {"out over a list of scales",
     [](GmmArgs& g, Arrays& a) {
       g.rhs.scales =
           Scales::list(ScaleMode::kBlock128, a.out_pointers, f32(arrays.rhs_scales, {1, 1}));
     },
     "gmm: out overlaps rhs.scales, expected separate memory"},
};

TgmmArgs valid_tgmm(Arrays& a) {
  TgmmArgs args;
  args.lhs = ScaledTensor::column_wise(e4m3(arrays.lhs, {kK, kColumns}),
                                       {ScaleMode::kBlock128, f32(arrays.lhs_scales, {3, kK})});
  args.rhs = ScaledTensor::column_wise(e4m3(arrays.rhs, {kN, kColumns}),
                                       {ScaleMode::kBlock128, f32(arrays.rhs_scales, {3, kN})});
  args.out = f32(a.out, {kGroups, kK, kN});
  args.group_sizes = a.group_sizes();
  return args;
}

const Row<TgmmArgs> kTgmmRows[] = {
    {"no column-wise copy",
     [](TgmmArgs& t, Arrays&) {
       t.lhs = {e4m3(arrays.lhs, {kM, kK}),
                {ScaleMode::kBlock128, f32(arrays.lhs_scales, {kM, 1})}};
     },
     "tgmm: lhs.columns = false, expected true, the column-wise copy that quantize writes for "
     "tgmm, because lhs.scales.mode = block_128"},
    {"no column-wise copy of rhs",
     [](TgmmArgs& t, Arrays&) {
       t.lhs.scales = {ScaleMode::kRow, f32(arrays.lhs_scales, {kGroups, kK})};
       t.rhs = {e4m3(arrays.rhs, {kM, kN}), {ScaleMode::kRow, f32(arrays.rhs_scales, {kM})}};
     },
     "tgmm: rhs.columns = false, expected true, the column-wise copy that quantize writes for "
     "tgmm, because rhs.scales.mode = row"},
    {"copies without scales", [](TgmmArgs& t, Arrays&) { t.rhs.scales = {}; },
     "tgmm: rhs.scales = nothing, expected scales because rhs.dtype = e4m3"},
    {"mx scales of a copy in f32",
     [](TgmmArgs& t, Arrays&) { t.lhs.scales.mode = t.rhs.scales.mode = ScaleMode::kMx; },
     "tgmm: lhs.scales.dtype = f32, expected e8m0"},
    {"e5m2 x e5m2", [](TgmmArgs& t, Arrays&) { t.lhs.dtype = t.rhs.dtype = DType::kE5M2; },
     "tgmm: rhs.dtype = e5m2, expected e4m3 because lhs.dtype = e5m2"},
    {"an output in fp8", [](TgmmArgs& t, Arrays&) { t.out.dtype = DType::kE4M3; },
     "tgmm: out.dtype = e4m3, expected f32, bf16 or f16 because lhs.dtype = e4m3"},
    {"one scale of a copy for each group",
     [](TgmmArgs& t, Arrays&) {
       t.lhs.scales = {ScaleMode::kTensor, f32(arrays.lhs_scales, {kGroups})};
       t.rhs.scales = {ScaleMode::kTensor, f32(arrays.rhs_scales, {1})};
     },
     "tgmm: lhs.scales.shape = [3], expected [1] because lhs.scales.mode = tensor"},
    {"too few columns", [](TgmmArgs& t, Arrays&) { t.rhs.shape[1] = 64; },
     "tgmm: rhs.shape[1] = 64, expected at least 96: each group's rows begin on a multiple of 32"},
    {"too few lines of scales", [](TgmmArgs& t, Arrays&) { t.lhs.scales.values.shape[0] = 2; },
     "tgmm: lhs.scales.shape[0] = 2, expected at least 3: each group has blocks of 128 rows of its "
     "own"},
    {"scales of another width", [](TgmmArgs& t, Arrays&) { t.lhs.scales.values.shape[1] = kK + 1; },
     "tgmm: lhs.scales.shape = [3, 5], expected [any, 4] because lhs.scales.mode = block_128"},
    {"row scales of another number of groups",
     [](TgmmArgs& t, Arrays&) {
       t.lhs.scales = {ScaleMode::kRow, f32(arrays.lhs_scales, {2, kK})};
     },
     "tgmm: lhs.scales.shape = [2, 4], expected [3, 4] because lhs.scales.mode = row"},
    {"rows of a copy by index", [](TgmmArgs& t, Arrays& a) { t.lhs_rows = i32(a.rows, kM); },
     "tgmm: lhs_rows = given, expected none because lhs is a column-wise copy"},
    {"mixed modes",
     [](TgmmArgs& t, Arrays&) {
       t.rhs.scales = {ScaleMode::kRow, f32(arrays.rhs_scales, {kGroups, kN})};
     },
     "tgmm: rhs.scales.mode = row, expected block_128 because lhs.scales.mode = block_128"},
    {"a copy in bf16",
     [](TgmmArgs& t, Arrays&) {
       t.lhs.dtype = t.rhs.dtype = DType::kBF16;
       t.lhs.scales = {};
     },
     "tgmm: lhs.columns = true, expected false because lhs.dtype = bf16"},
};

GroupedGemmArgs valid_grouped_gemm(Arrays& a) {
  GroupedGemmArgs args;
  args.a = {e4m3(arrays.lhs, {kGroups, 2, kK}),
            {ScaleMode::kBlock128, f32(arrays.lhs_scales, {kGroups, 2, 1})}};
  args.b = {e4m3(arrays.rhs, {kGroups, kK, kN}),
            {ScaleMode::kBlock128, f32(arrays.rhs_scales, {kGroups, 1, 1})}};
  args.d = f32(a.out, {kGroups, 2, kN});
  return args;
}

const Row<GroupedGemmArgs> kGroupedGemmRows[] = {
    {"scales of another shape", [](GroupedGemmArgs& g, Arrays&) { g.a.scales.values.shape[1] = 3; },
     "grouped_gemm: a.scales.shape = [3, 3, 1], expected [3, 1, 1] or [3, 2, 1] because "
     "a.scales.mode = block_128"},
    {"no scales", [](GroupedGemmArgs& g, Arrays&) { g.b.scales = {}; },
     "grouped_gemm: b.scales = nothing, expected scales because b.dtype = e4m3"},
    {"a mode without values", [](GroupedGemmArgs& g, Arrays&) { g.a.scales.values = {}; },
     "grouped_gemm: a.scales = nothing, expected a tensor of scales"},
    {"unknown mode",
     [](GroupedGemmArgs& g, Arrays&) { g.b.scales.mode = static_cast<ScaleMode>(7); },
     "grouped_gemm: b.scales.mode = 7, expected 1 (tensor), 2 (row), 3 (block_128) or 4 (mx)"},
    {"mixed modes",
     [](GroupedGemmArgs& g, Arrays&) {
       g.b.scales = {ScaleMode::kTensor, f32(arrays.rhs_scales, {1})};
     },
     "grouped_gemm: b.scales.mode = tensor, expected block_128 because a.scales.mode = block_128"},
    {"blocks with rows",
     [](GroupedGemmArgs& g, Arrays&) {
       g.a.scales = {ScaleMode::kRow, f32(arrays.lhs_scales, {kGroups, 2})};
     },
     "grouped_gemm: b.scales.mode = block_128, expected tensor or row because a.scales.mode = "
     "row"},
    {"blocks of 32 with blocks of 128",
     [](GroupedGemmArgs& g, Arrays&) {
       g.b.scales = {ScaleMode::kMx, e8m0(arrays.exponents, {kGroups, 1, kN})};
     },
     "grouped_gemm: b.scales.mode = mx, expected block_128 because a.scales.mode = block_128"},
    {"e5m2 x e5m2", [](GroupedGemmArgs& g, Arrays&) { g.a.dtype = g.b.dtype = DType::kE5M2; },
     "grouped_gemm: b.dtype = e5m2, expected e4m3 because a.dtype = e5m2"},
    {"fp8 x bf16", [](GroupedGemmArgs& g, Arrays&) { g.b.dtype = DType::kBF16; },
     "grouped_gemm: b.dtype = bf16, expected e4m3 or e5m2 because a.dtype = e4m3"},
    {"scales of i8", [](GroupedGemmArgs& g, Arrays&) { g.a.dtype = g.b.dtype = DType::kI8; },
     "grouped_gemm: a.scales = given, expected none because a.dtype = i8"},
    {"an output in fp8", [](GroupedGemmArgs& g, Arrays&) { g.d.dtype = DType::kE4M3; },
     "grouped_gemm: d.dtype = e4m3, expected f32, bf16 or f16 because a.dtype = e4m3"},
    {"an output in f64", [](GroupedGemmArgs& g, Arrays&) { g.d.dtype = DType::kF64; },
     "grouped_gemm: d.dtype = f64, expected f32, bf16 or f16 because a.dtype = e4m3"},
    {"c in fp8",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.beta = 1.0;
       g.c = f32(a.c, {kGroups, 2, kN});
       g.c.dtype = DType::kE4M3;
     },
     "grouped_gemm: c.dtype = e4m3, expected f64, f32, bf16 or f16"},
    {"tensor scales of too many groups",
     [](GroupedGemmArgs& g, Arrays&) {
       g.a.scales = {ScaleMode::kTensor, f32(arrays.lhs_scales, {kGroups + 1})};
       g.b.scales = {ScaleMode::kTensor, f32(arrays.rhs_scales, {1})};
     },
     "grouped_gemm: a.scales.shape = [4], expected [1] or [3] because a.scales.mode = tensor"},
    {"row scales of the inner dim",
     [](GroupedGemmArgs& g, Arrays&) {
       g.a.scales = {ScaleMode::kRow, f32(arrays.lhs_scales, {kGroups, 2})};
       g.b.scales = {ScaleMode::kRow, f32(arrays.rhs_scales, {kGroups, kK})};
     },
     "grouped_gemm: b.scales.shape = [3, 4], expected [3, 5] because b.scales.mode = row"},
    {"mx scales of blocks of 128",
     [](GroupedGemmArgs& g, Arrays&) {
       g.a.scales = {ScaleMode::kMx, e8m0(arrays.exponents, {kGroups, 2, 1})};
       g.b.scales = {ScaleMode::kMx, e8m0(arrays.exponents, {kGroups, 1, 1})};
     },
     "grouped_gemm: b.scales.shape = [3, 1, 1], expected [3, 1, 5] because b.scales.mode = mx"},
    {"scales of another rank",
     [](GroupedGemmArgs& g, Arrays&) {
       g.b.scales.values = f32(arrays.rhs_scales, {kGroups, 1});
     },
     "grouped_gemm: b.scales.shape = [3, 1], expected [3, 1, 1] or [3, 1, 5] because "
     "b.scales.mode = block_128"},
    {"scales of another type",
     [](GroupedGemmArgs& g, Arrays&) { g.a.scales.values.dtype = DType::kBF16; },
     "grouped_gemm: a.scales.dtype = bf16, expected f32 or e8m0"},
    {"row scales in e8m0",
     [](GroupedGemmArgs& g, Arrays&) {
       g.b.scales = {ScaleMode::kRow, e8m0(arrays.exponents, {kGroups, kN})};
     },
     "grouped_gemm: b.scales.dtype = e8m0, expected f32"},
    {"mx scales in f32", [](GroupedGemmArgs& g, Arrays&) { g.a.scales.mode = ScaleMode::kMx; },
     "grouped_gemm: a.scales.dtype = f32, expected e8m0"},
    {"scales without data", [](GroupedGemmArgs& g, Arrays&) { g.b.scales.values.data = nullptr; },
     "grouped_gemm: b.scales.data = null, expected a pointer"},
    {"a list of scales with a null",
     [](GroupedGemmArgs& g, Arrays&) {
       g.b.scales =
           Scales::list(ScaleMode::kBlock128, arrays.null_in_list, f32(arrays.rhs_scales, {1, 1}));
     },
     "grouped_gemm: b.scales.pointers[1] = null, expected a pointer"},
    {"scales on another device",
     [](GroupedGemmArgs& g, Arrays&) { g.b.scales.values.device.kind = DeviceKind::kCuda; },
     "grouped_gemm: b.scales.device = cuda:0, expected b.device = cpu"},
    {"d over a's scales", [](GroupedGemmArgs& g, Arrays& a) { g.a.scales.values.data = a.out; },
     "grouped_gemm: d overlaps a.scales, expected separate memory"},
    {"d over scales", [](GroupedGemmArgs& g, Arrays& a) { g.b.scales.values.data = a.out; },
     "grouped_gemm: d overlaps b.scales, expected separate memory"},
};

TEST(BadInput, ScaledGmm) {
  for (const Row<GmmArgs>& row : kGmmRows) expect_error(row, valid_gmm);
}

/// The C ABI has no field that could say so.
TEST(BadInput, GmmTakesNoColumnWiseCopy) {
  Arrays a;
  GmmArgs args = valid_gmm(a);
  args.lhs.columns = true;
  Context context;
  EXPECT_EQ(
      gmm(context, args).message(),
      "gmm: lhs.columns = true, expected false: gmm takes rows, a column-wise copy is for tgmm");
  EXPECT_TRUE(a.untouched());
}

TEST(BadInput, ScaledTgmm) {
  for (const Row<TgmmArgs>& row : kTgmmRows) expect_error(row, valid_tgmm);
}

TEST(BadInput, ScaledGroupedGemm) {
  for (const Row<GroupedGemmArgs>& row : kGroupedGemmRows) expect_error(row, valid_grouped_gemm);
}

}  // namespace
}  // namespace cadre::tests
