// Bad input of tgmm, grouped_gemm and bias_grad.
#include "tests/unit/bad_input.h"

namespace cadre::tests {
namespace {

TgmmArgs valid_tgmm(Arrays& a) {
  TgmmArgs args;
  args.lhs = f32(a.lhs, {kM, kK});
  args.rhs = f32(a.rhs, {kM, kN});
  args.out = f32(a.out, {kGroups, kK, kN});
  args.group_sizes = a.group_sizes();
  return args;
}

const Row<TgmmArgs> kTgmmRows[] = {
    {"m of rhs",
     [](TgmmArgs& t, Arrays& a) {
       t.rhs = f32(a.rhs, {kM + 1, kN});
     },
     "tgmm: rhs.m = 7, expected lhs.m = 6"},
    {"a row index beyond rhs", [](TgmmArgs& t, Arrays& a) { t.rhs_rows = i32(a.bad_rows, kM); },
     "tgmm: rhs_rows[3] = 6, expected -1 or 0 to rhs.shape[0] - 1 = 5"},
    {"other rows than lhs has", [](TgmmArgs& t, Arrays& a) { t.rhs_rows = i32(a.rows, kM - 1); },
     "tgmm: rhs_rows.shape[0] = 5, expected lhs.m = 6"},
    {"k of out",
     [](TgmmArgs& t, Arrays& a) {
       t.out = f32(a.out, {kGroups, kN, kK});
     },
     "tgmm: out.k = 5, expected lhs.k = 4"},
    {"n of out",
     [](TgmmArgs& t, Arrays& a) {
       t.out = f32(a.out, {kGroups, kK, 3});
     },
     "tgmm: out.n = 3, expected rhs.n = 5"},
    {"out rank",
     [](TgmmArgs& t, Arrays& a) {
       t.out = f32(a.out, {kK, kN});
     },
     "tgmm: out = rows of one tensor, expected one stacked tensor or a list of pointers "
     "(out.shape = [4, 5])"},
    {"lhs rank", [](TgmmArgs& t, Arrays& a) { t.lhs = f32(a.lhs, {kM * kK}); },
     "tgmm: lhs.rank = 1, expected 2 (lhs.shape = [24])"},
    {"null rhs", [](TgmmArgs& t, Arrays&) { t.rhs.data = nullptr; },
     "tgmm: rhs.data = null, expected a pointer"},
    {"groups of c",
     [](TgmmArgs& t, Arrays& a) {
       t.c = f32(a.c, {2, kK, kN});
       t.accumulate = true;
     },
     "tgmm: c.num_groups = 2, expected out.num_groups = 3"},
    {"out overlaps lhs",
     [](TgmmArgs& t, Arrays& a) {
       t.lhs = f32(a.out, {kM, kK});
     },
     "tgmm: out overlaps lhs, expected separate memory"},
    {"two groups share a gradient",
     [](TgmmArgs& t, Arrays& a) {
       a.pointers[0] = a.pointers[1];
       t.rhs = f32(a.c, {kM, kN});
       t.out = GroupedTensor::list(a.pointers, kGroups, f32(a.out, {kK, kN}));
     },
     "tgmm: out: two groups share memory, expected separate outputs"},
    {"sum above m", [](TgmmArgs& t, Arrays& a) { t.group_sizes.data = a.too_many; },
     "tgmm: sum of group_sizes[0..2] = 3 + 4, expected at most m = 6"},
    {"group_offset out of range", [](TgmmArgs& t, Arrays&) { t.group_offset = 1; },
     "tgmm: group_offset = 1, expected 0 to 0 (group_sizes.count - local groups)"},
    {"dtype of out", [](TgmmArgs& t, Arrays&) { t.out.dtype = DType::kI8; },
     "tgmm: out.dtype = i8, expected f64, f32, bf16 or f16 (i32 is for i8 x i8 alone)"},
    {"a list of broadcast outputs",
     [](TgmmArgs& t, Arrays& a) {
       const auto like = TensorView::strided(a.out, DType::kF32, {kK, kN}, {0, 1});
       t.out = GroupedTensor::list(a.out_pointers, kGroups, like);
     },
     "tgmm: out overlaps itself (strides 0, 1), expected every element at its own address"},
    {"one matrix for all groups",
     [](TgmmArgs& t, Arrays& a) {
       t.out = TensorView::strided(a.out, DType::kF32, {kGroups, kK, kN}, {0, kN, 1});
     },
     "tgmm: out overlaps itself (strides 0, 5, 1), expected every element at its own address"},
    {"more groups than pointers of out",
     [](TgmmArgs& t, Arrays& a) {
       t.out = GroupedTensor::list(a.one_pointer, 1 << 24, f32(a.out, {kK, kN}));
     },
     "tgmm: group_sizes.count = 3, expected at least the number of local groups = 16777216"},
    {"rows that nobody has",
     [](TgmmArgs& t, Arrays& a) {
       t.lhs = TensorView::strided(a.lhs, DType::kF32, {INT64_MAX - 1, kK}, {0, 1});
     },
     "tgmm: lhs.shape[0] = 9223372036854775806, expected at most 2^48"},
};

GroupedGemmArgs valid_grouped_gemm(Arrays& a) {
  GroupedGemmArgs args;
  args.a = f32(a.lhs, {kGroups, 2, kK});
  args.b = f32(a.rhs, {kGroups, kK, kN});
  args.d = f32(a.out, {kGroups, 2, kN});
  return args;
}

const Row<GroupedGemmArgs> kGroupedGemmRows[] = {
    {"no a", [](GroupedGemmArgs& g, Arrays&) { g.a = {}; },
     "grouped_gemm: a = nothing, expected one stacked tensor or a list of pointers or a packed "
     "buffer"},
    {"k", [](GroupedGemmArgs& g, Arrays&) { g.transb = true; },
     "grouped_gemm: b[0].k = 5, expected a[0].k = 4"},
    {"m of d",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.d = f32(a.out, {kGroups, 1, kN});
     },
     "grouped_gemm: d[0].m = 1, expected a[0].m = 2"},
    {"n of c",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.c = f32(a.c, {kGroups, 2, kN - 1});
       g.accumulate = true;
     },
     "grouped_gemm: c[0].n = 4, expected d[0].n = 5"},
    {"groups",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.b = f32(a.rhs, {2, kK, kN});
     },
     "grouped_gemm: b.num_groups = 2, expected a.num_groups = 3"},
    {"dtype of b", [](GroupedGemmArgs& g, Arrays&) { g.b.dtype = DType::kU32; },
     "grouped_gemm: b.dtype = u32, expected i8, the one integer type of products, or a float type"},
    {"beyond the capacity",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.d = GroupedTensor::packed(a.out, DType::kF32, kGroups, 2, kN, 29);
     },
     "grouped_gemm: d: group 2 ([2, 5] at element 20) ends beyond capacity = 29"},
    {"negative extent",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.d = GroupedTensor::packed(a.out, DType::kF32, kGroups,
                                   GroupSizes(a.negative, DType::kI32, kGroups), kN, 40);
     },
     "grouped_gemm: d.rows[1] = -1, expected 0 to 2^48"},
    {"extents for too few groups",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.d = GroupedTensor::packed(a.out, DType::kF32, kGroups, GroupSizes(a.sizes, DType::kI32, 2),
                                   kN, 40);
     },
     "grouped_gemm: d.rows.count = 2, expected d.num_groups = 3"},
    {"d overlaps b", [](GroupedGemmArgs& g, Arrays& a) { g.b.data = a.out; },
     "grouped_gemm: d overlaps b, expected separate memory"},
    {"rows of a packed d that repeat",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.d = GroupedTensor::packed(a.out, DType::kF32, kGroups, 2, kN, 60);
       g.d.contiguous = false;
       g.d.row_stride = 1;
     },
     "grouped_gemm: d overlaps itself (strides 1, 1), expected every element at its own address"},
    {"rows of a list of several shapes that repeat",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.a = GroupedTensor::packed(a.lhs, DType::kF32, kGroups,
                                   GroupSizes(a.sizes, DType::kI32, kGroups), kK, kM * kK);
       g.d = GroupedTensor::list(a.out_pointers, kGroups,
                                 TensorView::strided(a.out, DType::kF32, {1, kN}, {0, 1}));
       g.d.rows = GroupSizes(a.sizes, DType::kI32, kGroups);
     },
     "grouped_gemm: d overlaps itself (strides 0, 1), expected every element at its own address"},
    {"negative strides of a packed a",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.a = GroupedTensor::packed(a.lhs, DType::kF32, kGroups, 2, kK, kM * kK);
       g.a.contiguous = false;
       g.a.row_stride = -kK;
     },
     "grouped_gemm: a.row_stride = -4, .col_stride = 1, expected 0 or more in a packed buffer"},
    {"more groups than pointers of b",
     [](GroupedGemmArgs& g, Arrays& a) {
       g.b = GroupedTensor::list(a.one_pointer, 1 << 24, f32(a.rhs, {kK, kN}));
     },
     "grouped_gemm: b.num_groups = 16777216, expected a.num_groups = 3"},
    {"k that nobody has",
     [](GroupedGemmArgs& g, Arrays& a) {
       constexpr int64_t kMost = INT64_MAX / 4;
       g.a = TensorView::strided(a.lhs, DType::kF32, {kGroups, 2, kMost}, {0, 0, 0});
       g.b = TensorView::strided(a.rhs, DType::kF32, {kGroups, kMost, kN}, {0, 0, 0});
     },
     "grouped_gemm: a.cols = 2305843009213693951, expected at most 2^48"},
    {"null d", [](GroupedGemmArgs& g, Arrays&) { g.d.data = nullptr; },
     "grouped_gemm: d.data = null, expected a pointer"},
};

BiasGradArgs valid_bias_grad(Arrays& a) {
  BiasGradArgs args;
  args.dy = f32(a.lhs, {4, kN});
  args.group_sizes = GroupSizes(a.sizes, DType::kI32, 2);
  args.dbias = GroupedTensor::vectors(f32(a.out, {2, kN}));
  args.dbias_scale = f32(a.dbias_scale, {4});
  args.bias = GroupedTensor::vectors(f32(a.bias, {2, kN}));
  return args;
}

const Row<BiasGradArgs> kBiasGradRows[] = {
    {"rank of dy", [](BiasGradArgs& b, Arrays& a) { b.dy = f32(a.lhs, {kM}); },
     "bias_grad: dy.rank = 1, expected 2 (dy.shape = [6])"},
    {"dtype of dy", [](BiasGradArgs& b, Arrays&) { b.dy.dtype = DType::kI8; },
     "bias_grad: dy.dtype = i8, expected f64, f32, bf16 or f16"},
    {"n of dbias",
     [](BiasGradArgs& b, Arrays& a) {
       b.dbias = GroupedTensor::vectors(f32(a.out, {2, 4}));
     },
     "bias_grad: dbias.n = 4, expected dy.n = 5"},
    {"groups of bias",
     [](BiasGradArgs& b, Arrays& a) {
       b.bias = GroupedTensor::vectors(f32(a.bias, {1, kN}));
     },
     "bias_grad: bias.num_groups = 1, expected the number of local groups = 2"},
    {"dbias_scale without bias", [](BiasGradArgs& b, Arrays&) { b.bias = {}; },
     "bias_grad: dbias_scale is given without bias, expected both"},
    {"length of bias_scale", [](BiasGradArgs& b, Arrays& a) { b.bias_scale = f32(a.vector, {3}); },
     "bias_grad: bias_scale.shape[0] = 3, expected dy.m = 4"},
    {"dbias overlaps dy",
     [](BiasGradArgs& b, Arrays& a) {
       b.dy = f32(a.out, {4, kN});
     },
     "bias_grad: dbias overlaps dy, expected separate memory"},
    {"dbias_scale overlaps dbias",
     [](BiasGradArgs& b, Arrays& a) { b.dbias_scale = f32(a.out + 9, {4}); },
     "bias_grad: dbias_scale overlaps dbias, expected separate memory"},
    {"negative size", [](BiasGradArgs& b, Arrays& a) { b.group_sizes.data = a.negative; },
     "bias_grad: group_sizes[1] = -1, expected 0 or more"},
    {"a list of broadcast dbias",
     [](BiasGradArgs& b, Arrays& a) {
       const auto like = TensorView::strided(a.out, DType::kF32, {kN}, {0});
       b.dbias = GroupedTensor::list(a.out_pointers, 2, like);
     },
     "bias_grad: dbias overlaps itself (strides 0, 0), expected every element at its own address"},
    {"a broadcast dbias_scale",
     [](BiasGradArgs& b, Arrays& a) {
       b.dbias_scale = TensorView::strided(a.dbias_scale, DType::kF32, {4}, {0});
     },
     "bias_grad: dbias_scale overlaps itself (stride 0), expected every element at its own "
     "address"},
    {"dbias without vectors",
     [](BiasGradArgs& b, Arrays& a) {
       b.dbias = f32(a.out, {2, kN});
     },
     "bias_grad: dbias = rows of one tensor, expected one vector for each group: "
     "GroupedTensor::vectors (cadre_grouped_vectors in C) of it, or a list (dbias.shape = [2, 5])"},
    {"rows that nobody has",
     [](BiasGradArgs& b, Arrays& a) {
       b.dy = TensorView::strided(a.lhs, DType::kF32, {INT64_MAX, kN}, {0, 1});
     },
     "bias_grad: dy.shape[0] = 9223372036854775807, expected at most 2^48"},
    {"null dbias", [](BiasGradArgs& b, Arrays&) { b.dbias.data = nullptr; },
     "bias_grad: dbias.data = null, expected a pointer"},
};

TEST(BadInput, Tgmm) {
  for (const auto& row : kTgmmRows) expect_error(row, valid_tgmm);
}
TEST(BadInput, GroupedGemm) {
  for (const auto& row : kGroupedGemmRows) expect_error(row, valid_grouped_gemm);
}
TEST(BadInput, BiasGrad) {
  for (const auto& row : kBiasGradRows) expect_error(row, valid_bias_grad);
}

}  // namespace
}  // namespace cadre::tests
