// The contract of products on FP8 operands with scales, on every backend and instruction set.
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

/// The reference and other instruction sets than the best one take one pair of types, with a code
/// of either.
std::vector<SuiteParam> scaled_parameters() {
  std::vector<SuiteParam> all;
  for (const SuiteParam& param : parameters("scaled", scaled_types())) {
    const auto& [name, types] = param;
    const bool one_pair = name == "reference" || name.starts_with("cpu_");
    if (!one_pair || types.rhs == DType::kE5M2) all.push_back(param);
  }
  return all;
}

class ScaledContract : public ContractSuite {};
INSTANTIATE_TEST_SUITE_P(All, ScaledContract, testing::ValuesIn(scaled_parameters()),
                         name_of_param);

TEST_P(ScaledContract, GmmInEveryMode) { expect(scaled::gmm_in_every_mode); }
TEST_P(ScaledContract, GmmWithEverything) { expect(scaled::gmm_with_everything); }
TEST_P(ScaledContract, FreeScaleStrides) { expect(scaled::free_scale_strides); }
TEST_P(ScaledContract, AnyStrides) { expect(scaled::any_strides); }
TEST_P(ScaledContract, TgmmInEveryMode) { expect(scaled::tgmm_in_every_mode); }
TEST_P(ScaledContract, GroupedGemmInEveryMode) { expect(scaled::grouped_gemm_in_every_mode); }
TEST_P(ScaledContract, GroupsAroundABlock) { expect(scaled::groups_around_a_block); }
TEST_P(ScaledContract, NanStaysWhereItIs) { expect(scaled::nan_stays_where_it_is); }
TEST_P(ScaledContract, RowsAreBatchInvariant) { expect(scaled::rows_are_batch_invariant); }

}  // namespace
}  // namespace cadre::contract
