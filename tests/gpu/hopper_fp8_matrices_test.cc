// FP8 on Hopper where results lie by rows: tgmm of column-wise copies, and grouped_gemm. Every mode
// that the kernels take, every pair of types, at the edges of tiles and blocks.
#include "tests/contract/contract.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/hopper_subjects.h"

namespace cadre::tests {
namespace {

using contract::DTypes;
using verify::Case;
using verify::COperand;
using verify::Scalars;

struct Modes {
  ScaleMode lhs, rhs;
  bool e8m0 = false;
};

class HopperFp8Matrices : public HopperTest {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    ContextOptions options{.backend = "cuda"};
    options.sm_count = 3;  // every CTA takes many tiles
    few_ctas_ = std::make_unique<Context>(options);
    all_ctas_ = std::make_unique<Context>(ContextOptions{.backend = "cuda"});
  }

  // Fails when a kernel of another family computes the case.
  void expect(const Case& c, const char* family = "sm90/grouped") {
    for (Context* context : {few_ctas_.get(), all_ctas_.get()}) {
      const verify::Subject subject{*context, memory_of("sm90"), family};
      for (const std::string& failure : verify::check_case(subject, c)) {
        ADD_FAILURE() << to_string(c) << ": " << failure;
      }
    }
  }

  static Case with_modes(Case c, const Modes& modes) {
    c.lhs_mode = modes.lhs;
    c.rhs_mode = modes.rhs;
    c.e8m0_scales = modes.e8m0;
    return c;
  }

  // tgmm: rows of FP8 data with one scale for all aren't copies, so kTensor has none here.
  static std::vector<Modes> modes_of_copies() {
    return {{ScaleMode::kRow, ScaleMode::kRow},
            {ScaleMode::kBlock128, ScaleMode::kBlock128},
            {ScaleMode::kBlock128, ScaleMode::kBlock128, true}};
  }

  static Case tgmm(const DTypes& types, const std::vector<int64_t>& sizes, int64_t tail) {
    Case c = contract::tgmm::basic(types);
    c.k = 136;
    c.n = 200;
    return contract::with_sizes(c, sizes, tail);
  }

  static const std::vector<DTypes>& types() {
    static const std::vector<DTypes> all = {{DType::kE4M3, DType::kE4M3, DType::kBF16},
                                            {DType::kE4M3, DType::kE5M2, DType::kF32},
                                            {DType::kE5M2, DType::kE4M3, DType::kF16}};
    return all;
  }

  // The copy engine reads rows of whole 16 bytes.
  static void pad_rows(Case* c, int64_t lhs_row, int64_t rhs_row) {
    c->lhs_layout.row_padding = (16 - lhs_row % 16) % 16;
    c->rhs_layout.row_padding = (16 - rhs_row % 16) % 16;
    c->lhs_layout.gap_elements = c->lhs_layout.row_padding;
    c->rhs_layout.gap_elements = c->rhs_layout.row_padding;
  }

 private:
  std::unique_ptr<Context> few_ctas_;
  std::unique_ptr<Context> all_ctas_;
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
        pad_rows(&c, 0, 0);
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

// No tensor core of Hopper's takes blocks of 32.
TEST_F(HopperFp8Matrices, MxIsWidenedForTheKernelsOfBf16) {
  for (const DTypes& pair : {types()[0], types()[1]}) {
    Case c = with_modes(contract::gmm::basic(pair), {ScaleMode::kMx, ScaleMode::kMx});
    c.transpose_rhs = true;
    for (const auto& [k, n] : {std::pair{136, 200}, std::pair{64, 8}, std::pair{300, 520}}) {
      c.k = k;
      c.n = n;
      c = contract::with_sizes(c, {0, 1, 127, 128, 300}, 9);
      expect(c, "sm90/gmm");
      c.sizes_on_device = true;
      expect(c, "sm90/gmm");
    }
    Case gradient =
        with_modes(tgmm(pair, {0, 1, 127, 128, 129, 40, 0}, 5), {ScaleMode::kMx, ScaleMode::kMx});
    for (const bool on_device : {false, true}) {
      gradient.sizes_on_device = on_device;
      gradient.accumulate = false;
      expect(gradient, "sm90/tgmm");
      gradient.accumulate = true;
      expect(gradient, "sm90/tgmm");
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
