// Cases of FP8 on Hopper, run on few CTAs and on all, and what they have in common: pairs of types,
// modes of scales, operands that the copy engine takes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/contract/contract.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/hopper_subjects.h"

namespace cadre::tests {

class HopperFp8Cases : public HopperTest {
 protected:
  struct Modes {
    ScaleMode lhs, rhs;
    bool e8m0 = false;
  };

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    ContextOptions options{.backend = "cuda"};
    options.sm_count = 3;  // every CTA takes many tiles
    few_ctas_ = std::make_unique<Context>(options);
    all_ctas_ = std::make_unique<Context>(ContextOptions{.backend = "cuda"});
  }

  // Fails when a kernel of another family computes the case.
  void expect(const verify::Case& c, const char* family) {
    for (Context* context : {few_ctas_.get(), all_ctas_.get()}) {
      const verify::Subject subject{*context, memory_of("sm90"), family};
      for (const std::string& failure : verify::check_case(subject, c)) {
        ADD_FAILURE() << to_string(c) << ": " << failure;
      }
    }
  }

  static verify::Case with_modes(verify::Case c, const Modes& modes) {
    c.lhs_mode = modes.lhs;
    c.rhs_mode = modes.rhs;
    c.e8m0_scales = modes.e8m0;
    return c;
  }

  // Column-wise copies, as quantize writes them in every mode.
  static verify::Case tgmm(const contract::DTypes& types, const std::vector<int64_t>& sizes,
                           int64_t tail) {
    verify::Case c = contract::tgmm::basic(types);
    c.k = 136;
    c.n = 200;
    c.tensor_copies = true;
    return contract::with_sizes(c, sizes, tail);
  }

  static const std::vector<contract::DTypes>& types() {
    static const std::vector<contract::DTypes> all = {{DType::kE4M3, DType::kE4M3, DType::kBF16},
                                                      {DType::kE4M3, DType::kE5M2, DType::kF32},
                                                      {DType::kE5M2, DType::kE4M3, DType::kF16}};
    return all;
  }

 private:
  std::unique_ptr<Context> few_ctas_;
  std::unique_ptr<Context> all_ctas_;
};

}  // namespace cadre::tests
