// The contract of gmm on every backend and instruction set, for every pair of types.
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(GmmContract, "gmm", product_types());

TEST_P(GmmContract, RightAtTileEdges) { expect(gmm::right_at_tile_edges); }
TEST_P(GmmContract, RightForEveryPartition) { expect(gmm::right_for_every_partition); }
TEST_P(GmmContract, TransposedWeights) { expect(gmm::transposed_weights); }
TEST_P(GmmContract, TailRowsAreZeroOrUntouched) { expect(gmm::tail_rows); }
TEST_P(GmmContract, GroupOffsetSelectsLocalGroups) { expect(gmm::group_offset); }
TEST_P(GmmContract, AlphaBetaAndC) { expect(gmm::alpha_beta_and_c); }
TEST_P(GmmContract, CIsNotReadWithoutBeta) { expect(gmm::c_is_not_read_without_beta); }
TEST_P(GmmContract, BiasAndScales) { expect(gmm::bias_and_scales); }
TEST_P(GmmContract, AnyStrides) { expect(gmm::any_strides); }
TEST_P(GmmContract, PointerLists) { expect(gmm::pointer_lists); }
TEST_P(GmmContract, SizesOfEveryType) { expect(gmm::sizes_of_every_type); }
TEST_P(GmmContract, NanStaysInItsGroup) { expect(gmm::nan_stays_in_its_group); }
TEST_P(GmmContract, EmptyThings) { expect(gmm::empty_things); }
TEST_P(GmmContract, Activations) { expect(gmm::activations); }
TEST_P(GmmContract, RowsByIndex) { expect(gmm::rows_by_index); }
TEST_P(GmmContract, PackedWeights) { expect(gmm::packed_weights); }
TEST_P(GmmContract, AnyNumberOfGroups) { expect(gmm::any_number_of_groups); }
TEST_P(GmmContract, ModelShapes) { expect(gmm::model_shapes); }
TEST_P(GmmContract, RowsAreBatchInvariant) { expect(gmm_rows_are_batch_invariant); }
TEST_P(GmmContract, RowOfOneIsRowOf4096) { expect(gmm_row_of_one_and_of_4096); }

CADRE_CONTRACT_SUITE(GmmInt8Contract, "gmm", int8_types());

TEST_P(GmmInt8Contract, SumsAreExact) { expect(gmm::int8_sums_are_exact); }

}  // namespace
}  // namespace cadre::contract
