// The contract of tgmm on every backend and instruction set, for every pair of types.
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(TgmmContract, "tgmm", product_types());

TEST_P(TgmmContract, RightAtTileEdges) { expect(tgmm::right_at_tile_edges); }
TEST_P(TgmmContract, RightForEveryPartition) { expect(tgmm::right_for_every_partition); }
TEST_P(TgmmContract, EmptyGroupsGiveBetaC) { expect(tgmm::empty_groups_give_beta_c); }
TEST_P(TgmmContract, GroupOffsetSelectsLocalGroups) { expect(tgmm::group_offset); }
TEST_P(TgmmContract, AlphaBetaAndC) { expect(tgmm::alpha_beta_and_c); }
TEST_P(TgmmContract, AnyStrides) { expect(tgmm::any_strides); }
TEST_P(TgmmContract, RowsByIndex) { expect(tgmm::rows_by_index); }
TEST_P(TgmmContract, PointerLists) { expect(tgmm::pointer_lists); }
TEST_P(TgmmContract, SizesOfEveryType) { expect(tgmm::sizes_of_every_type); }
TEST_P(TgmmContract, NanStaysInItsGroup) { expect(tgmm::nan_stays_in_its_group); }
TEST_P(TgmmContract, EmptyThings) { expect(tgmm::empty_things); }
TEST_P(TgmmContract, AnyNumberOfGroups) { expect(tgmm::any_number_of_groups); }
TEST_P(TgmmContract, ModelShapes) { expect(tgmm::model_shapes); }
TEST_P(TgmmContract, GroupsAreBatchInvariant) { expect(tgmm_groups_are_batch_invariant); }
TEST_P(TgmmContract, GroupOfOneRowIsTheSameAmong4096) { expect(tgmm_group_of_one_row_and_of_4096); }

CADRE_CONTRACT_SUITE(TgmmFloatContract, "tgmm", float_types());

TEST_P(TgmmFloatContract, AccumulatesInMainGrad) { expect(tgmm::accumulates_in_main_grad); }

CADRE_CONTRACT_SUITE(TgmmInt8Contract, "tgmm", int8_types());

TEST_P(TgmmInt8Contract, SumsAreExact) { expect(tgmm::int8_sums_are_exact); }

}  // namespace
}  // namespace cadre::contract
