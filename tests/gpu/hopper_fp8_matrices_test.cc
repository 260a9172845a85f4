// FP8 on Hopper where results lie by rows: tgmm of column-wise copies, and grouped_gemm. Every mode
// that the kernels take, every pair of types, at the edges of tiles and blocks.
#include "tests/gpu/hopper_fp8_cases.h"

namespace cadre::tests {
namespace {

using contract::DTypes;
using verify::Case;
using verify::COperand;
using verify::Scalars;

class HopperFp8Matrices : public HopperFp8Cases {
 protected:
  void expect(const Case& c) { HopperFp8Cases::expect(c, "sm90/grouped"); }

  static std::vector<Modes> modes_of_copies() {
    return {{ScaleMode::kTensor, ScaleMode::kTensor},
            {ScaleMode::kTensor, ScaleMode::kRow},
            {ScaleMode::kRow, ScaleMode::kRow},
            {ScaleMode::kBlock128, ScaleMode::kBlock128},
            {ScaleMode::kBlock128, ScaleMode::kBlock128, true}};
  }
};

TEST_F(HopperFp8Matrices, TgmmInEveryModeAndType) {
  for (const DTypes& pair : types()) {
    for (const Modes& modes : modes_of_copies()) {
      expect(with_modes(tgmm(pair, {0, 1, 127, 128, 129, 40, 0}, 5), modes));
      expect(with_modes(tgmm(pair, {300, 31, 32, 33, 1000}, 0), modes));
    }
  }
}

TEST_F(HopperFp8Matrices, TgmmAtTheEdgesOfTiles) {
  for (const Modes& modes : modes_of_copies()) {
    for (const auto& [k, n] : {std::pair{1, 8},
                               {63, 64},
                               {64, 72},
                               {65, 128},
                               {127, 136},
                               {128, 192},
                               {129, 200},
                               {257, 584}}) {
      Case c = tgmm(types()[0], {70, 0, 260}, 3);
      c.k = k;
      c.n = n;
      expect(with_modes(c, modes));
      c.out = c.c_dtype = DType::kF32;
      expect(with_modes(c, modes));
    }
  }
}

TEST_F(HopperFp8Matrices, TgmmAddsToWhatIsThere) {
  for (const DTypes& pair : types()) {
    for (const Modes& modes : modes_of_copies()) {
      Case c = with_modes(tgmm(pair, {0, 150, 64, 513}, 7), modes);
      c.accumulate = true;
      c.sizes_on_device = true;
      expect(c);
      c.out_layout.form = Placement::kList;  // read by the device alone: the portable kernel waits
      expect(c);
      c.accumulate = false;
      c.alpha = c.beta = Scalars::kPerGroup;
      c.c = COperand::kSeparate;
      expect(c);
    }
  }
}

TEST_F(HopperFp8Matrices, TgmmOfAShard) {
  for (const Modes& modes : modes_of_copies()) {
    Case c = with_modes(tgmm(types()[0], {33, 200, 0, 129, 64, 5}, 0), modes);
    c.num_local_groups = 3;
    c.group_offset = 2;
    expect(c);
    c.sizes_on_device = true;
    expect(c);
  }
}

TEST_F(HopperFp8Matrices, GroupedGemmInEveryModeAndType) {
  const Modes all[] = {{ScaleMode::kTensor, ScaleMode::kTensor},
                       {ScaleMode::kRow, ScaleMode::kTensor},
                       {ScaleMode::kRow, ScaleMode::kRow},
                       {ScaleMode::kBlock128, ScaleMode::kBlock128},
                       {ScaleMode::kBlock128, ScaleMode::kBlock128, true}};
  for (const DTypes& pair : types()) {
    for (const Modes& modes : all) {
      for (const bool square : {false, true}) {
        Case c = with_modes(contract::grouped_gemm::basic(pair), modes);
        c.transpose_rhs = true;
        c.dims = {{200, 400, 136}, {0, 16, 8}, {130, 272, 520}, {1, 128, 8}, {64, 144, 192}};
        c.lhs_square_blocks = square && modes.lhs == ScaleMode::kBlock128;
        expect(c);
        c.accumulate = true;
        expect(c);
        c.accumulate = false;
        c.alpha = Scalars::kPerGroup;
        c.sizes_on_device = true;
        expect(c);
      }
    }
  }
}

// What the tensor cores don't take is another kernel's, and never an error.
TEST_F(HopperFp8Matrices, OtherLayoutsHaveAnotherKernel) {
  Context context(ContextOptions{.backend = "cuda"});
  Case c = with_modes(contract::grouped_gemm::basic(types()[0]),
                      {ScaleMode::kBlock128, ScaleMode::kBlock128});
  c.dims = {{32, 256, 64}, {16, 128, 48}};
  for (const bool lhs : {false, true}) {
    c.transpose_lhs = lhs;
    c.transpose_rhs = lhs;  // one of the two isn't along k
    const verify::Subject subject{context, memory_of("sm90"), "sm80/"};
    for (const std::string& failure : verify::check_case(subject, c)) ADD_FAILURE() << failure;
  }
}

}  // namespace
}  // namespace cadre::tests
