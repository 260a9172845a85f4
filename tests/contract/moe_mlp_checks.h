// The promises of MoeMlp. Types: lhs of tokens and of what lies between the ops, rhs of the
// parameters, out of the results in token order.
#pragma once

#include "tests/contract/contract.h"

namespace cadre::contract::moe_mlp {

const std::vector<DTypes>& types();

Failures every_activation_and_layout(const Subject& subject, const DTypes& types);
Failures every_form_of_weights(const Subject& subject, const DTypes& types);
Failures router_weights_on_either_side(const Subject& subject, const DTypes& types);
Failures any_routing(const Subject& subject, const DTypes& types);
Failures rows_sorted_already(const Subject& subject, const DTypes& types);
Failures odd_widths(const Subject& subject, const DTypes& types);
Failures delayed_gradients_have_the_same_bits(const Subject& subject, const DTypes& types);
Failures any_gradients_alone_have_the_same_bits(const Subject& subject, const DTypes& types);
Failures memory_used_twice_changes_no_bit(const Subject& subject, const DTypes& types);
Failures adds_to_main_grad(const Subject& subject, const DTypes& types);
Failures shards_add_up(const Subject& subject, const DTypes& types);
Failures nan_in_dropped_rows_goes_nowhere(const Subject& subject, const DTypes& types);
Failures tokens_are_batch_invariant(const Subject& subject, const DTypes& types);
Failures inference_has_the_bits_of_training(const Subject& subject, const DTypes& types);

}  // namespace cadre::contract::moe_mlp
