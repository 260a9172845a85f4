// The promises of the ops around the products. Types: lhs of the rows or logits that are read, rhs
// of weights and biases, out of what is written.
#pragma once

#include "tests/contract/contract.h"

namespace cadre::contract {

const std::vector<DTypes>& row_types();

namespace route {
Failures sorts_slots_by_expert(const Subject& subject, const DTypes& types);
Failures drops_ids_out_of_range(const Subject& subject, const DTypes& types);
Failures indices_of_every_type_and_stride(const Subject& subject, const DTypes& types);
Failures empty_things(const Subject& subject, const DTypes& types);
}  // namespace route

namespace permute {
Failures copies_rows_by_index(const Subject& subject, const DTypes& types);
Failures slots_change_nothing(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
}  // namespace permute

namespace combine {
Failures sums_weighted_rows(const Subject& subject, const DTypes& types);
Failures long_rows_and_many_tokens(const Subject& subject, const DTypes& types);
Failures dropped_slots_are_not_read(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
Failures tokens_are_batch_invariant(const Subject& subject, const DTypes& types);
Failures gradients(const Subject& subject, const DTypes& types);
Failures empty_things(const Subject& subject, const DTypes& types);
}  // namespace combine

namespace select_experts {
Failures chooses_the_best(const Subject& subject, const DTypes& types);
Failures keeps_to_the_best_groups(const Subject& subject, const DTypes& types);
Failures ties_go_to_the_lower_index(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
}  // namespace select_experts

/// lhs of preact and grad, rhs of row_scale and row_dot, out of the other results.
namespace activate {
Failures every_kind_and_layout(const Subject& subject, const DTypes& types);
Failures gradients(const Subject& subject, const DTypes& types);
Failures gradients_in_place_have_the_same_bits(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
Failures nan_stays_in_its_row(const Subject& subject, const DTypes& types);
Failures rows_are_batch_invariant(const Subject& subject, const DTypes& types);
Failures empty_things(const Subject& subject, const DTypes& types);
}  // namespace activate

/// Types: lhs of x, rhs of row_scale, out of what dequantize writes.
const std::vector<DTypes>& quantize_types();

namespace quantize {
Failures every_mode_and_type(const Subject& subject, const DTypes& types);
Failures weights(const Subject& subject, const DTypes& types);
Failures model_widths(const Subject& subject, const DTypes& types);
Failures rows_by_index_and_weighed(const Subject& subject, const DTypes& types);
Failures activations(const Subject& subject, const DTypes& types);
Failures scales_of_every_rule(const Subject& subject, const DTypes& types);
Failures numbers_without_a_scale(const Subject& subject, const DTypes& types);
Failures sizes_of_every_type(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
Failures groups_are_alone(const Subject& subject, const DTypes& types);
Failures empty_things(const Subject& subject, const DTypes& types);
}  // namespace quantize

}  // namespace cadre::contract
