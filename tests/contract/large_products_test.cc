// Large products on every fast backend and instruction set of this machine.
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

std::vector<std::string> fast_backends() {
  std::vector<std::string> names = contract_subjects();
  std::erase(names, "reference");
  return names;
}

std::vector<DTypes> types_with_own_kernels() {
  return {{DType::kF32, DType::kF32, DType::kF32},
          {DType::kBF16, DType::kBF16, DType::kBF16},
          {DType::kI8, DType::kI8, DType::kI32}};
}

class LargeProducts : public ContractSuite {};

TEST_P(LargeProducts, GmmIsRightInTheSample) { expect(gmm_large_product); }
TEST_P(LargeProducts, TgmmIsRightInTheSample) { expect(tgmm_large_product); }

INSTANTIATE_TEST_SUITE_P(All, LargeProducts,
                         testing::Combine(testing::ValuesIn(fast_backends()),
                                          testing::ValuesIn(types_with_own_kernels())),
                         name_of_param);

}  // namespace
}  // namespace cadre::contract
