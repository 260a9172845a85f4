// The contracts of the row ops on every backend.
#include "tests/contract/row_checks.h"
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(RouteContract, "", std::vector<DTypes>{row_types().front()});

TEST_P(RouteContract, SortsSlotsByExpert) { expect(route::sorts_slots_by_expert); }
TEST_P(RouteContract, DropsIdsOutOfRange) { expect(route::drops_ids_out_of_range); }
TEST_P(RouteContract, IndicesOfEveryTypeAndStride) {
  expect(route::indices_of_every_type_and_stride);
}
TEST_P(RouteContract, EmptyThings) { expect(route::empty_things); }

CADRE_CONTRACT_SUITE(PermuteContract, "", row_types());

TEST_P(PermuteContract, CopiesRowsByIndex) { expect(permute::copies_rows_by_index); }
TEST_P(PermuteContract, SlotsChangeNothing) { expect(permute::slots_change_nothing); }
TEST_P(PermuteContract, AnyStrides) { expect(permute::any_strides); }

CADRE_CONTRACT_SUITE(CombineContract, "", row_types());

TEST_P(CombineContract, SumsWeightedRows) { expect(combine::sums_weighted_rows); }
TEST_P(CombineContract, LongRowsAndManyTokens) { expect(combine::long_rows_and_many_tokens); }
TEST_P(CombineContract, DroppedSlotsAreNotRead) { expect(combine::dropped_slots_are_not_read); }
TEST_P(CombineContract, AnyStrides) { expect(combine::any_strides); }
TEST_P(CombineContract, TokensAreBatchInvariant) { expect(combine::tokens_are_batch_invariant); }
TEST_P(CombineContract, Gradients) { expect(combine::gradients); }
TEST_P(CombineContract, EmptyThings) { expect(combine::empty_things); }

CADRE_CONTRACT_SUITE(SelectExpertsContract, "", row_types());

TEST_P(SelectExpertsContract, ChoosesTheBest) { expect(select_experts::chooses_the_best); }
TEST_P(SelectExpertsContract, KeepsToTheBestGroups) {
  expect(select_experts::keeps_to_the_best_groups);
}
TEST_P(SelectExpertsContract, TiesGoToTheLowerIndex) {
  expect(select_experts::ties_go_to_the_lower_index);
}
TEST_P(SelectExpertsContract, AnyStrides) { expect(select_experts::any_strides); }

CADRE_CONTRACT_SUITE(ActivateContract, "", row_types());

TEST_P(ActivateContract, EveryKindAndLayout) { expect(activate::every_kind_and_layout); }
TEST_P(ActivateContract, Gradients) { expect(activate::gradients); }
TEST_P(ActivateContract, GradientsInPlaceHaveTheSameBits) {
  expect(activate::gradients_in_place_have_the_same_bits);
}
TEST_P(ActivateContract, AnyStrides) { expect(activate::any_strides); }
TEST_P(ActivateContract, NanStaysInItsRow) { expect(activate::nan_stays_in_its_row); }
TEST_P(ActivateContract, RowsAreBatchInvariant) { expect(activate::rows_are_batch_invariant); }
TEST_P(ActivateContract, EmptyThings) { expect(activate::empty_things); }

}  // namespace
}  // namespace cadre::contract
