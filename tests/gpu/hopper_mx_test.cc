// FP8 with scales of mode mx on Hopper: no tensor core there takes blocks of 32, so the operands
// are widened for the kernels of bf16, with every option that these have.
#include "tests/gpu/hopper_fp8_cases.h"

namespace cadre::tests {
namespace {

using contract::DTypes;
using verify::Case;
using verify::COperand;
using verify::Scalars;

class HopperMx : public HopperFp8Cases {
 protected:
  static Case mx(Case c) { return with_modes(std::move(c), {ScaleMode::kMx, ScaleMode::kMx}); }

  static Case gmm(const DTypes& pair) {
    Case c = mx(contract::gmm::basic(pair));
    c.k = 136;
    c.n = 200;
    c.transpose_rhs = true;
    return contract::with_sizes(c, {0, 1, 127, 128, 300}, 9);
  }
  static Case gmm() { return gmm(types()[0]); }

  static Case gradient(const DTypes& pair) {
    return mx(tgmm(pair, {0, 1, 127, 128, 129, 40, 0}, 5));
  }

  // With sizes on the host and on the device.
  void expect_both(Case c) {
    for (const bool on_device : {false, true}) {
      c.sizes_on_device = on_device;
      expect(c, c.op == verify::Op::kGmm ? "sm90/gmm" : "sm90/tgmm");
    }
  }
};

TEST_F(HopperMx, RunsOnTheKernelsOfBf16) {
  for (const DTypes& pair : {types()[0], types()[1]}) {
    for (const auto& [k, n] : {std::pair{136, 200}, std::pair{64, 8}, std::pair{300, 520}}) {
      Case c = gmm(pair);
      c.k = k;
      c.n = n;
      expect_both(c);
    }
    Case c = gradient(pair);
    expect_both(c);
    c.accumulate = true;
    expect_both(c);
  }
}

TEST_F(HopperMx, WeightsInEitherOrder) {
  for (const DTypes& pair : {types()[0], types()[1]}) {
    for (const auto& [k, n] : {std::pair{136, 200}, std::pair{35, 24}, std::pair{300, 136}}) {
      Case c = gmm(pair);
      c.k = k;
      c.n = n;
      c.transpose_rhs = false;
      expect_both(c);
      c.rhs_layout.row_padding = 5;
      c.rhs_scales_layout.row_padding = 3;
      expect_both(c);
    }
  }
}

// Tables of all groups lie beside those of the local ones. The first group has rows at the
// beginning of the widened operands.
TEST_F(HopperMx, ShardOfFortyExperts) {
  std::vector<int64_t> sizes(40);
  for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = static_cast<int64_t>(i * 7 % 20);
  sizes[0] = 300;
  sizes[18] = 200;
  for (Case c : {gmm(), gradient(types()[1])}) {
    c = contract::with_sizes(c, sizes, 6);
    c.num_local_groups = 8;
    for (const int64_t first : {0, 16, 32}) {
      c.group_offset = first;
      c.accumulate = false;
      expect_both(c);
      c.accumulate = true;
      expect_both(c);
    }
  }
}

TEST_F(HopperMx, RowsByIndex) {
  for (const int64_t rows : {30, 700}) {
    Case c = gmm();
    c.lhs_rows = rows;
    expect_both(c);
    c.transpose_rhs = false;
    c.row_scale = true;
    expect_both(c);
  }
}

TEST_F(HopperMx, Activations) {
  for (const DTypes& pair : {types()[0], types()[1]}) {  // in the kernel, and behind it
    for (const GateLayout layout : {GateLayout::kConcatenated, GateLayout::kInterleaved}) {
      Case c = gmm(pair);
      c.n = 272;
      c.activation = {.kind = ActivationKind::kSwiglu, .layout = layout};
      for (const bool preactivation : {false, true}) {
        c.preactivation = preactivation;
        expect_both(c);
        Case by_index = c;
        by_index.lhs_rows = 90;
        expect_both(by_index);
      }
    }
  }
}

TEST_F(HopperMx, EveryOptionOfTheEpilogue) {
  for (const DTypes& pair : {types()[0], types()[1]}) {
    for (Case c : {gmm(pair), gradient(pair)}) {
      c.alpha = c.beta = Scalars::kPerGroup;
      c.c = COperand::kSeparate;
      expect_both(c);
      if (c.op == verify::Op::kTgmm) continue;
      c.bias = verify::Presence::kTensor;
      c.bias_scale = c.row_scale = true;
      expect_both(c);
    }
  }
}

}  // namespace
}  // namespace cadre::tests
