// The contracts of grouped_gemm and bias_grad on every backend, for every type.
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(GroupedGemmContract, "grouped_gemm", product_types());

TEST_P(GroupedGemmContract, EveryGroupHasItsOwnDims) {
  expect(grouped_gemm::every_group_has_its_own_dims);
}
TEST_P(GroupedGemmContract, AnyNumberOfGroups) { expect(grouped_gemm::any_number_of_groups); }
TEST_P(GroupedGemmContract, Transposes) { expect(grouped_gemm::transposes); }
TEST_P(GroupedGemmContract, AlphaBetaAndC) { expect(grouped_gemm::alpha_beta_and_c); }
TEST_P(GroupedGemmContract, EveryFormOfTensor) { expect(grouped_gemm::every_form_of_tensor); }
TEST_P(GroupedGemmContract, AnyStrides) { expect(grouped_gemm::any_strides); }
TEST_P(GroupedGemmContract, NanStaysInItsGroup) { expect(grouped_gemm::nan_stays_in_its_group); }
TEST_P(GroupedGemmContract, EmptyThings) { expect(grouped_gemm::empty_things); }

CADRE_CONTRACT_SUITE(BiasGradContract, "", bias_grad_types());

TEST_P(BiasGradContract, SumsRowsOfEachGroup) { expect(bias_grad::sums_rows_of_each_group); }
TEST_P(BiasGradContract, GradientOfBiasScale) { expect(bias_grad::gradient_of_bias_scale); }
TEST_P(BiasGradContract, Accumulates) { expect(bias_grad::accumulates); }
TEST_P(BiasGradContract, GroupOffsetAndTail) { expect(bias_grad::group_offset_and_tail); }
TEST_P(BiasGradContract, AnyStrides) { expect(bias_grad::any_strides); }
TEST_P(BiasGradContract, NanStaysInItsGroup) { expect(bias_grad::nan_stays_in_its_group); }
TEST_P(BiasGradContract, EmptyThings) { expect(bias_grad::empty_things); }

}  // namespace
}  // namespace cadre::contract
