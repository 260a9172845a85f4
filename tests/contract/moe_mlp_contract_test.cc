// The contract of MoeMlp on every backend.
#include "tests/contract/moe_mlp_checks.h"
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(MoeMlpContract, "", moe_mlp::types());

TEST_P(MoeMlpContract, EveryActivationAndLayout) { expect(moe_mlp::every_activation_and_layout); }
TEST_P(MoeMlpContract, EveryFormOfWeights) { expect(moe_mlp::every_form_of_weights); }
TEST_P(MoeMlpContract, RouterWeightsOnEitherSide) {
  expect(moe_mlp::router_weights_on_either_side);
}
TEST_P(MoeMlpContract, AnyRouting) { expect(moe_mlp::any_routing); }
TEST_P(MoeMlpContract, RowsSortedAlready) { expect(moe_mlp::rows_sorted_already); }
TEST_P(MoeMlpContract, OddWidths) { expect(moe_mlp::odd_widths); }
TEST_P(MoeMlpContract, DelayedGradientsHaveTheSameBits) {
  expect(moe_mlp::delayed_gradients_have_the_same_bits);
}
TEST_P(MoeMlpContract, AnyGradientsAloneHaveTheSameBits) {
  expect(moe_mlp::any_gradients_alone_have_the_same_bits);
}
TEST_P(MoeMlpContract, MemoryUsedTwiceChangesNoBit) {
  expect(moe_mlp::memory_used_twice_changes_no_bit);
}
TEST_P(MoeMlpContract, AddsToMainGrad) { expect(moe_mlp::adds_to_main_grad); }
TEST_P(MoeMlpContract, ShardsAddUp) { expect(moe_mlp::shards_add_up); }
TEST_P(MoeMlpContract, NanInDroppedRowsGoesNowhere) {
  expect(moe_mlp::nan_in_dropped_rows_goes_nowhere);
}
TEST_P(MoeMlpContract, TokensAreBatchInvariant) { expect(moe_mlp::tokens_are_batch_invariant); }
TEST_P(MoeMlpContract, InferenceHasTheBitsOfTraining) {
  expect(moe_mlp::inference_has_the_bits_of_training);
}

}  // namespace
}  // namespace cadre::contract
