// quantize, dequantize and amax on every backend and instruction set.
#include "tests/contract/row_checks.h"
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(QuantizeContract, "", quantize_types());

TEST_P(QuantizeContract, EveryModeAndType) { expect(quantize::every_mode_and_type); }
TEST_P(QuantizeContract, Weights) { expect(quantize::weights); }
TEST_P(QuantizeContract, ModelWidths) { expect(quantize::model_widths); }
TEST_P(QuantizeContract, RowsByIndexAndWeighed) { expect(quantize::rows_by_index_and_weighed); }
TEST_P(QuantizeContract, Activations) { expect(quantize::activations); }
TEST_P(QuantizeContract, ScalesOfEveryRule) { expect(quantize::scales_of_every_rule); }
TEST_P(QuantizeContract, NumbersWithoutAScale) { expect(quantize::numbers_without_a_scale); }
TEST_P(QuantizeContract, SizesOfEveryType) { expect(quantize::sizes_of_every_type); }
TEST_P(QuantizeContract, AnyStrides) { expect(quantize::any_strides); }
TEST_P(QuantizeContract, GroupsAreAlone) { expect(quantize::groups_are_alone); }
TEST_P(QuantizeContract, EmptyThings) { expect(quantize::empty_things); }

}  // namespace
}  // namespace cadre::contract
