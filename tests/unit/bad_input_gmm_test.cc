// Bad input of gmm.
#include "tests/unit/bad_input.h"

namespace cadre::tests {
namespace {

GmmArgs valid_gmm(Arrays& a) {
  GmmArgs args;
  args.lhs = f32(a.lhs, {kM, kK});
  args.rhs = f32(a.rhs, {kGroups, kK, kN});
  args.out = f32(a.out, {kM, kN});
  args.group_sizes = a.group_sizes();
  return args;
}

const Row<GmmArgs> kGmmRows[] = {
    {"no lhs", [](GmmArgs& g, Arrays&) { g.lhs = {}; },
     "gmm: lhs = nothing, expected a tensor of rank 2"},
    {"lhs rank",
     [](GmmArgs& g, Arrays& a) {
       g.lhs = f32(a.lhs, {kM, 2, 2});
     },
     "gmm: lhs.rank = 3, expected 2 (lhs.shape = [6, 2, 2])"},
    {"lhs rank above the maximum",
     [](GmmArgs& g, Arrays& a) {
       g.lhs = f32(a.lhs, {kM, 1, 1, 2, 2});
     },
     "gmm: lhs.rank = 5, expected 2"},
    {"rhs rank",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = f32(a.rhs, {kK, kN});
     },
     "gmm: rhs = rows of one tensor, expected one stacked tensor or a list of pointers "
     "(rhs.shape = [4, 5])"},
    {"rhs rank 1", [](GmmArgs& g, Arrays& a) { g.rhs = f32(a.rhs, {kK}); },
     "gmm: rhs.rank = 1, expected 3 (one stacked tensor) or a list of pointers (rhs.shape = [4])"},
    {"a row index beyond lhs", [](GmmArgs& g, Arrays& a) { g.lhs_rows = i32(a.bad_rows, kM); },
     "gmm: lhs_rows[3] = 6, expected -1 or 0 to lhs.shape[0] - 1 = 5"},
    {"a row index below -1", [](GmmArgs& g, Arrays& a) { g.lhs_rows = i32(a.worse_rows, kM); },
     "gmm: lhs_rows[2] = -2, expected -1 or 0 to lhs.shape[0] - 1 = 5"},
    {"row indices of a float type", [](GmmArgs& g, Arrays& a) { g.lhs_rows = f32(a.vector, {kM}); },
     "gmm: lhs_rows.dtype = f32, expected i32 or i64"},
    {"rows of out by index", [](GmmArgs& g, Arrays& a) { g.lhs_rows = i32(a.rows, kM - 1); },
     "gmm: out.m = 6, expected lhs_rows.shape[0] = 5"},
    {"unknown kind of sizes",
     [](GmmArgs& g, Arrays&) { g.group_sizes.kind = static_cast<GroupSizesKind>(2); },
     "gmm: group_sizes.kind = 2, expected 0 (sizes) or 1 (ends)"},
    {"sizes taken for ends",
     [](GmmArgs& g, Arrays&) { g.group_sizes.kind = GroupSizesKind::kEnds; },
     "gmm: group_ends[1] = 1, expected group_ends[0] = 2 to m = 6"},
    {"rhs rank 4",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = f32(a.rhs, {1, kGroups, kK, kN});
     },
     "gmm: rhs.rank = 4, expected 3 (one stacked tensor) or a list of pointers "
     "(rhs.shape = [1, 3, 4, 5])"},
    {"out rank 1", [](GmmArgs& g, Arrays& a) { g.out = f32(a.out, {kM * kN}); },
     "gmm: out.rank = 1, expected 2 (rows of one tensor) or a list of pointers (out.shape = [30])"},
    {"bias rank 1",
     [](GmmArgs& g, Arrays& a) { g.bias = GroupedTensor::vectors(f32(a.bias, {kN})); },
     "gmm: bias.rank = 1, expected 2: [g, n], one vector for each group (GroupedTensor::vectors, "
     "in "
     "C cadre_grouped_vectors), or a list (bias.shape = [5])"},
    {"bias rank 1 without vectors", [](GmmArgs& g, Arrays& a) { g.bias = f32(a.bias, {kN}); },
     "gmm: bias.rank = 1, expected 2: [g, n], one vector for each group (GroupedTensor::vectors, "
     "in "
     "C cadre_grouped_vectors), or a list (bias.shape = [5])"},
    {"bias rank 3",
     [](GmmArgs& g, Arrays& a) {
       g.bias = GroupedTensor::vectors(f32(a.bias, {kGroups, 1, kN}));
     },
     "gmm: bias.rank = 3, expected 2: [g, n], one vector for each group (GroupedTensor::vectors, "
     "in "
     "C cadre_grouped_vectors), or a list (bias.shape = [3, 1, 5])"},
    {"out rank",
     [](GmmArgs& g, Arrays& a) {
       g.out = f32(a.out, {1, kM, kN});
     },
     "gmm: out = one stacked tensor, expected rows of one tensor or a list of pointers "
     "(out.shape = [1, 6, 5])"},
    {"k",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = f32(a.rhs, {kGroups, kK - 1, kN});
     },
     "gmm: rhs.k = 3, expected lhs.k = 4"},
    {"k with transposed weights", [](GmmArgs& g, Arrays&) { g.transpose_rhs = true; },
     "gmm: rhs.k = 5, expected lhs.k = 4"},
    {"n of out",
     [](GmmArgs& g, Arrays& a) {
       g.out = f32(a.out, {kM, kN - 1});
     },
     "gmm: out.n = 4, expected rhs.n = 5"},
    {"m of out",
     [](GmmArgs& g, Arrays& a) {
       g.out = f32(a.out, {kM - 1, kN});
     },
     "gmm: out.m = 5, expected lhs.m = 6"},
    {"dtype of lhs", [](GmmArgs& g, Arrays&) { g.lhs.dtype = DType::kI64; },
     "gmm: lhs.dtype = i64, expected i8, the one integer type of products, or a float type"},
    {"dtypes that do not multiply", [](GmmArgs& g, Arrays&) { g.rhs.dtype = DType::kE4M3; },
     "gmm: rhs.dtype = e4m3, expected f64, f32, bf16, f16 or i8 because lhs.dtype = f32"},
    {"dtype of out", [](GmmArgs& g, Arrays&) { g.out.dtype = DType::kI32; },
     "gmm: out.dtype = i32, expected f64, f32, bf16 or f16 (i32 is for i8 x i8 alone)"},
    {"unknown dtype", [](GmmArgs& g, Arrays&) { g.lhs.dtype = kUnknownDType; },
     "gmm: lhs.dtype = 99, expected a known dtype"},
    {"unknown dtype of rhs", [](GmmArgs& g, Arrays&) { g.rhs.dtype = kUnknownDType; },
     "gmm: rhs.dtype = 99, expected a known dtype"},
    {"null lhs", [](GmmArgs& g, Arrays&) { g.lhs.data = nullptr; },
     "gmm: lhs.data = null, expected a pointer"},
    {"null rhs", [](GmmArgs& g, Arrays&) { g.rhs.data = nullptr; },
     "gmm: rhs.data = null, expected a pointer"},
    {"null out", [](GmmArgs& g, Arrays&) { g.out.data = nullptr; },
     "gmm: out.data = null, expected a pointer"},
    {"null sizes", [](GmmArgs& g, Arrays&) { g.group_sizes.data = nullptr; },
     "gmm: group_sizes.data = null, expected 3 integers"},
    {"null in a list",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = GroupedTensor::list(a.null_in_list, kGroups, f32(a.rhs, {kK, kN}));
     },
     "gmm: rhs.pointers[1] = null, expected a pointer"},
    {"null list",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = GroupedTensor::list(nullptr, kGroups, f32(a.rhs, {kK, kN}));
     },
     "gmm: rhs.pointers = null, expected 3 pointers"},
    {"strides of a list",
     [](GmmArgs& g, Arrays& a) {
       constexpr int64_t kFar = int64_t{1} << 62;
       const auto like = TensorView::strided(a.rhs, DType::kF32, {kK, kN}, {kFar, 1});
       g.rhs = GroupedTensor::list(a.pointers, kGroups, like);
     },
     "gmm: rhs.strides = beyond 64-bit addresses, expected an extent below 2^63 bytes"},
    {"null in a list of results",
     [](GmmArgs& g, Arrays& a) {
       g.out = GroupedTensor::list(a.null_in_list, kGroups, f32(a.out, {3, kN}));
     },
     "gmm: out.pointers[1] = null, expected a pointer"},
    {"results shorter than a group",
     [](GmmArgs& g, Arrays& a) {
       g.out = GroupedTensor::list(a.pointers, kGroups, f32(a.out, {2, kN}));
     },
     "gmm: group_sizes[2] = 3, expected at most out.rows = 2"},
    {"negative dim", [](GmmArgs& g, Arrays&) { g.lhs.shape[0] = -1; },
     "gmm: lhs.shape[0] = -1, expected 0 or more"},
    {"negative dim of rhs", [](GmmArgs& g, Arrays&) { g.rhs.cols = -5; },
     "gmm: rhs.cols = -5, expected 0 or more"},
    {"more groups than anybody has", [](GmmArgs& g, Arrays&) { g.rhs.num_groups = INT64_MAX; },
     "gmm: rhs.num_groups = 9223372036854775807, expected at most 2^24"},
    {"more sizes than anybody has",
     [](GmmArgs& g, Arrays&) { g.group_sizes.count = int64_t{1} << 40; },
     "gmm: group_sizes.count = 1099511627776, expected at most 2^24"},
    {"negative number of groups", [](GmmArgs& g, Arrays&) { g.rhs.num_groups = -3; },
     "gmm: rhs.num_groups = -3, expected 0 or more"},
    {"extent above 2^63",
     [](GmmArgs& g, Arrays&) {
       g.lhs.strides = {INT64_MAX / 8, INT64_MAX / 4};
     },
     "gmm: lhs.strides = beyond 64-bit addresses, expected an extent below 2^63 bytes"},
    {"out is lhs",
     [](GmmArgs& g, Arrays& a) {
       g.lhs = f32(a.out, {kM, kK});
     },
     "gmm: out overlaps lhs, expected separate memory"},
    {"out is rhs", [](GmmArgs& g, Arrays& a) { g.rhs.data = a.out; },
     "gmm: out overlaps rhs, expected separate memory"},
    {"out begins in the last element of bias",
     [](GmmArgs& g, Arrays& a) {
       g.bias = GroupedTensor::vectors(f32(a.out - (kGroups * kN - 1), {kGroups, kN}));
     },
     "gmm: out overlaps bias, expected separate memory"},
    {"c overlaps out without being it",
     [](GmmArgs& g, Arrays& a) {
       g.c = f32(a.out + 1, {kM, kN});
       g.accumulate = true;
     },
     "gmm: out overlaps c, expected separate memory"},
    {"out overlaps itself",
     [](GmmArgs& g, Arrays& a) {
       g.out = TensorView::strided(a.out, DType::kF32, {kM, kN}, {kN - 1, 1});
     },
     "gmm: out overlaps itself (strides 4, 1), expected every element at its own address"},
    {"broadcast rows of out",
     [](GmmArgs& g, Arrays& a) {
       g.out = TensorView::strided(a.out, DType::kF32, {kM, kN}, {0, 1});
     },
     "gmm: out overlaps itself (strides 0, 1), expected every element at its own address"},
    {"a list of broadcast outputs",
     [](GmmArgs& g, Arrays& a) {
       const auto like = TensorView::strided(a.out, DType::kF32, {3, kN}, {0, 1});
       g.out = GroupedTensor::list(a.out_pointers, kGroups, like);
     },
     "gmm: out overlaps itself (strides 0, 1), expected every element at its own address"},
    {"strides of a contiguous stack", [](GmmArgs& g, Arrays&) { g.rhs.contiguous = true; },
     "gmm: rhs.contiguous = true, expected false in one stacked tensor, which has strides"},
    {"column stride of a contiguous list",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = GroupedTensor::list(a.pointers, kGroups, f32(a.rhs, {kK, kN}));
       g.rhs.contiguous = true;
       g.rhs.col_stride = 2;
     },
     "gmm: rhs.col_stride = 2, expected 1 because it is contiguous"},
    {"more groups than pointers of rhs",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = GroupedTensor::list(a.one_pointer, 1 << 24, f32(a.rhs, {kK, kN}));
     },
     "gmm: group_sizes.count = 3, expected at least the number of local groups = 16777216"},
    {"more groups than pointers of out",
     [](GmmArgs& g, Arrays& a) {
       g.out = GroupedTensor::list(a.one_pointer, 1 << 24, f32(a.out, {3, kN}));
     },
     "gmm: out.num_groups = 16777216, expected rhs.num_groups = 3"},
    {"device of sizes",
     [](GmmArgs& g, Arrays&) { g.group_sizes.device.kind = static_cast<DeviceKind>(7); },
     "gmm: group_sizes.device.kind = 7, expected 0 (cpu) or 1 (cuda)"},
    {"device of pointers",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = GroupedTensor::list(a.pointers, kGroups, f32(a.rhs, {kK, kN}),
                                   {static_cast<DeviceKind>(7), 0});
     },
     "gmm: rhs.pointers.device.kind = 7, expected 0 (cpu) or 1 (cuda)"},
    {"k that nobody has", [](GmmArgs& g, Arrays&) { g.lhs.shape[1] = INT64_MAX; },
     "gmm: lhs.shape[1] = 9223372036854775807, expected at most 2^48"},
    {"k that nobody has of broadcast operands",
     [](GmmArgs& g, Arrays& a) {
       constexpr int64_t kMost = (int64_t{1} << 62) - 1;
       g.lhs = TensorView::strided(a.lhs, DType::kF32, {kM, kMost}, {0, 0});
       g.rhs = TensorView::strided(a.rhs, DType::kF32, {kGroups, kMost, kN}, {0, 0, 0});
     },
     "gmm: lhs.shape[1] = 4611686018427387903, expected at most 2^48"},
    {"bias without vectors",
     [](GmmArgs& g, Arrays& a) {
       g.bias = f32(a.bias, {kGroups, kN});
     },
     "gmm: bias = rows of one tensor, expected one vector for each group: "
     "GroupedTensor::vectors (cadre_grouped_vectors in C) of it, or a list (bias.shape = [3, 5])"},
    {"an integer type of lhs", [](GmmArgs& g, Arrays&) { g.lhs.dtype = DType::kI16; },
     "gmm: lhs.dtype = i16, expected i8, the one integer type of products, or a float type"},
    {"too few sizes", [](GmmArgs& g, Arrays&) { g.group_sizes.count = 2; },
     "gmm: group_sizes.count = 2, expected at least the number of local groups = 3"},
    {"negative count", [](GmmArgs& g, Arrays&) { g.group_sizes.count = -1; },
     "gmm: group_sizes.count = -1, expected 0 or more"},
    {"sizes that are no integers", [](GmmArgs& g, Arrays&) { g.group_sizes.dtype = DType::kF32; },
     "gmm: group_sizes.dtype = f32, expected an integer type (i8 to i64, u8 to u64)"},
    {"negative size", [](GmmArgs& g, Arrays& a) { g.group_sizes.data = a.negative; },
     "gmm: group_sizes[1] = -1, expected 0 or more"},
    {"negative size read as unsigned",
     [](GmmArgs& g, Arrays& a) {
       g.group_sizes = {a.negative, DType::kU32, kGroups};
     },
     "gmm: sum of group_sizes[0..1] = 2 + 4294967295, expected at most m = 6"},
    {"sum above m", [](GmmArgs& g, Arrays& a) { g.group_sizes.data = a.too_many; },
     "gmm: sum of group_sizes[0..2] = 3 + 4, expected at most m = 6"},
    {"forbidden tail",
     [](GmmArgs& g, Arrays& a) {
       g.group_sizes.data = a.too_few;
       g.tail = Tail::kForbid;
     },
     "gmm: sum of group_sizes = 5, expected m = 6 because tail = forbid"},
    {"negative group_offset", [](GmmArgs& g, Arrays&) { g.group_offset = -1; },
     "gmm: group_offset = -1, expected 0 to 0 (group_sizes.count - local groups)"},
    {"group_offset out of range",
     [](GmmArgs& g, Arrays& a) {
       g.rhs = f32(a.rhs, {2, kK, kN});
       g.group_offset = 2;
     },
     "gmm: group_offset = 2, expected 0 to 1 (group_sizes.count - local groups)"},
    {"unknown tail", [](GmmArgs& g, Arrays&) { g.tail = static_cast<Tail>(3); },
     "gmm: tail = 3, expected 0 (zero), 1 (untouched) or 2 (forbid)"},
    {"unknown precision",
     [](GmmArgs& g, Arrays&) { g.options.precision = static_cast<Precision>(7); },
     "gmm: options.precision = 7, expected 0 (default) or 1 (tf32)"},
    {"negative average_rows", [](GmmArgs& g, Arrays&) { g.options.average_rows = -1; },
     "gmm: options.average_rows = -1, expected 0 or more"},
    {"workspace without memory", [](GmmArgs& g, Arrays&) { g.options.workspace_size_bytes = 8; },
     "gmm: options.workspace = null, expected 8 bytes of workspace"},
    {"accumulate and beta",
     [](GmmArgs& g, Arrays&) {
       g.accumulate = true;
       g.beta = 0.5;
     },
     "gmm: accumulate = true and beta is given, expected one of them"},
    {"length of alpha", [](GmmArgs& g, Arrays& a) { g.alpha = f32(a.vector, {kGroups + 1}); },
     "gmm: alpha.shape[0] = 4, expected the number of local groups = 3"},
    {"dtype of beta",
     [](GmmArgs& g, Arrays& a) {
       g.beta = TensorView::contiguous(a.vector, DType::kBF16, {kGroups});
     },
     "gmm: beta.dtype = bf16, expected f32 or f64"},
    {"groups of bias",
     [](GmmArgs& g, Arrays& a) {
       g.bias = GroupedTensor::vectors(f32(a.bias, {2, kN}));
     },
     "gmm: bias.num_groups = 2, expected rhs.num_groups = 3"},
    {"n of bias",
     [](GmmArgs& g, Arrays& a) {
       g.bias = GroupedTensor::vectors(f32(a.bias, {kGroups, 4}));
     },
     "gmm: bias.n = 4, expected rhs.n = 5"},
    {"bias_scale without bias", [](GmmArgs& g, Arrays& a) { g.bias_scale = f32(a.vector, {kM}); },
     "gmm: bias_scale is given without bias, expected both"},
    {"length of row_scale", [](GmmArgs& g, Arrays& a) { g.row_scale = f32(a.vector, {kM - 1}); },
     "gmm: row_scale.shape[0] = 5, expected lhs.m = 6"},
    {"rank of row_scale",
     [](GmmArgs& g, Arrays& a) {
       g.row_scale = f32(a.vector, {kM, 1});
     },
     "gmm: row_scale.rank = 2, expected 1 (row_scale.shape = [6, 1])"},
    {"shape of c",
     [](GmmArgs& g, Arrays& a) {
       g.c = f32(a.c, {kM, kN + 1});
       g.beta = 1.0;
     },
     "gmm: c.n = 6, expected rhs.n = 5"},
    {"device of rhs",
     [](GmmArgs& g, Arrays&) {
       g.rhs.device = {DeviceKind::kCuda, 0};
     },
     "gmm: rhs.device = cuda:0, expected lhs.device = cpu"},
    {"sizes on a device",
     [](GmmArgs& g, Arrays&) {
       g.group_sizes.device = {DeviceKind::kCuda, 1};
     },
     "gmm: group_sizes.device = cuda:1, expected the data.device = cpu"},
};

TEST(BadInput, Gmm) {
  for (const auto& row : kGmmRows) expect_error(row, valid_gmm);
}

TEST(BadInput, ExactlyOutIsAValidC) {
  Arrays arrays;
  GmmArgs args = valid_gmm(arrays);
  args.c = args.out;
  args.beta = 0.5;
  Context context;
  EXPECT_TRUE(gmm(context, args).ok());
}

}  // namespace
}  // namespace cadre::tests
