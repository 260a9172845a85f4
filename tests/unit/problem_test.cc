// Problem and Config are printable and hashable: equal ones alike, different ones not.
#include "plan/problem.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <vector>

#include "plan/config.h"

namespace cadre::plan {
namespace {

Problem basic() {
  Problem p;
  p.m = 4096;
  p.k = 2048;
  p.n = 1536;
  p.num_groups = p.num_local_groups = 8;
  for (OperandLayout* layout : {&p.lhs, &p.rhs, &p.out}) layout->dtype = DType::kBF16;
  p.lhs.placement = p.out.placement = Placement::kRows;
  p.rhs.placement = Placement::kStacked;
  p.sizes_dtype = DType::kI32;
  return p;
}

/// One change of each field.
const std::vector<std::function<void(Problem&)>>& changes() {
  static const std::vector<std::function<void(Problem&)>> all = {
      [](Problem& p) { p.op = Op::kTgmm; },
      [](Problem& p) {
        p.device = {DeviceKind::kCuda, 0};
      },
      [](Problem& p) { p.device.index = 1; },
      [](Problem& p) { p.m = 4095; },
      [](Problem& p) { p.k = 2047; },
      [](Problem& p) { p.n = 1535; },
      [](Problem& p) { p.num_groups = 9; },
      [](Problem& p) { p.num_local_groups = 7; },
      [](Problem& p) { p.lhs.dtype = DType::kF16; },
      [](Problem& p) { p.rhs.placement = Placement::kList; },
      [](Problem& p) { p.rhs.group_stride = 5; },
      [](Problem& p) { p.out.row_stride = 5; },
      [](Problem& p) { p.out.contiguous = true; },
      [](Problem& p) { p.lhs.col_stride = 2; },
      [](Problem& p) { p.lhs.alignment_bytes = 16; },
      [](Problem& p) { p.epilogue.c.placement = Placement::kRows; },
      [](Problem& p) { p.epilogue.bias.placement = Placement::kStacked; },
      [](Problem& p) { p.transpose_lhs = true; },
      [](Problem& p) { p.transpose_rhs = true; },
      [](Problem& p) { p.compute = DType::kF64; },
      [](Problem& p) { p.sizes_dtype = DType::kI64; },
      [](Problem& p) { p.sizes_on_device = true; },
      [](Problem& p) { p.offset_on_device = true; },
      [](Problem& p) { p.tail = Tail::kUntouched; },
      [](Problem& p) { p.lhs_rows.rows = 3; },
      [](Problem& p) { p.lhs_rows.index = DType::kI32; },
      [](Problem& p) { p.rhs_rows.index = DType::kI64; },
      [](Problem& p) { p.epilogue.has_alpha = true; },
      [](Problem& p) { p.epilogue.has_beta = true; },
      [](Problem& p) { p.epilogue.has_bias_scale = true; },
      [](Problem& p) { p.epilogue.has_row_scale = true; },
      [](Problem& p) { p.precision = Precision::kTf32; },
      [](Problem& p) { p.average_rows = 3; },
      [](Problem& p) { p.fast_accumulation = true; },
      [](Problem& p) { p.lhs_scales.mode = ScaleMode::kRow; },
      [](Problem& p) { p.rhs_scales.mode = ScaleMode::kBlock128; },
      [](Problem& p) { p.rhs_scales.dtype = DType::kE8M0; },
      [](Problem& p) { p.lhs_scales.group_stride = 7; },
      [](Problem& p) { p.lhs_scales.outer_stride = 7; },
      [](Problem& p) { p.lhs_scales.inner_stride = 7; },
      [](Problem& p) { p.rhs_scales.outer_block = 128; },
      [](Problem& p) { p.lhs_scales.columns = true; },
      [](Problem& p) { p.rhs_scales.list = true; },
      [](Problem& p) { p.lhs_scales.lines = 4; },
      [](Problem& p) { p.rhs_scales.alignment_bytes = 16; },
  };
  return all;
}

TEST(Problem, EveryFieldCountsInEqualityAndHash) {
  std::set<size_t> hashes = {hash_of(basic())};
  for (size_t i = 0; i < changes().size(); ++i) {
    Problem changed = basic();
    changes()[i](changed);
    EXPECT_FALSE(changed == basic()) << "change " << i;
    EXPECT_TRUE(hashes.insert(hash_of(changed)).second) << "change " << i;
    Problem again = basic();
    changes()[i](again);
    EXPECT_EQ(changed, again);
    EXPECT_EQ(hash_of(changed), hash_of(again));
  }
}

TEST(Problem, PrintsWhatIsAsked) {
  EXPECT_EQ(to_string(basic()),
            "gmm m=4096 k=2048 n=1536 groups=8 bf16 x bf16 -> bf16 in f32 on cpu");
  Problem p = basic();
  p.num_local_groups = 2;
  p.transpose_rhs = true;
  p.rhs.placement = Placement::kList;
  p.epilogue.has_alpha = p.epilogue.has_beta = p.epilogue.has_row_scale = true;
  p.epilogue.bias.placement = Placement::kStacked;
  p.tail = Tail::kUntouched;
  p.device = {DeviceKind::kCuda, 1};
  p.sizes_on_device = true;
  EXPECT_EQ(to_string(p),
            "gmm m=4096 k=2048 n=1536 groups=8 local=2 bf16 x bf16 list^T -> bf16 in f32 on "
            "cuda:1, device sizes, alpha, beta * out, bias, row_scale, tail untouched");
}

TEST(Problem, PrintsHowOperandsAreScaled) {
  Problem p = basic();
  p.lhs.dtype = DType::kE5M2;
  p.rhs.dtype = DType::kE4M3;
  p.lhs_scales.mode = p.rhs_scales.mode = ScaleMode::kBlock128;
  p.lhs_scales.dtype = DType::kF32;
  p.rhs_scales.dtype = DType::kE8M0;
  p.transpose_rhs = p.rhs_scales.list = p.fast_accumulation = true;
  EXPECT_EQ(to_string(p),
            "gmm m=4096 k=2048 n=1536 groups=8 e5m2 block_128 x e4m3^T block_128 e8m0 list -> bf16 "
            "in f32 on cpu, fast accumulation");
}

TEST(Config, PrintsAndHashes) {
  const Config config{
      .kernel = "cpu/avx512", .tile_m = 14, .tile_n = 32, .tile_k = 256, .threads = 2};
  EXPECT_EQ(to_string(config), "cpu/avx512 tile 14x32x256 threads 2");
  Config other = config;
  EXPECT_EQ(hash_of(other), hash_of(config));
  other.tile_n = 64;
  EXPECT_FALSE(other == config);
  EXPECT_NE(hash_of(other), hash_of(config));
  EXPECT_EQ(to_string(Config{.kernel = "reference"}), "reference");
  EXPECT_EQ(to_string(Config{
                .kernel = "sm90/gmm", .tile_m = 128, .tile_n = 256, .tile_k = 64, .stages = 4}),
            "sm90/gmm tile 128x256x64 stages 4");
  EXPECT_EQ(to_string(Config{.kernel = "sm90/gmm", .copies_rows = true}),
            "sm90/gmm, after a copy of the rows by index");
}

}  // namespace
}  // namespace cadre::plan
