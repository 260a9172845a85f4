// The promises of the contract as functions: each runs calls on a subject and returns what was
// wrong. The suites expect nothing; the planted faults expect something.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "verify/case.h"
#include "verify/check_case.h"

namespace cadre::contract {

using Failures = std::vector<std::string>;
using verify::Case;
using verify::Layout;

void append(Failures* all, Failures more);

/// Who is under test. One that takes some problems alone has every check's cases fitted to it.
struct Subject : verify::Subject {
  std::string kernel{};              ///< pinned in every call; empty: the library chooses
  std::function<bool(Case*)> fit{};  ///< false: nothing can make the case one for this subject
};

struct DTypes {
  DType lhs;
  DType rhs;
  DType out;
};

/// "bf16_f32_f32"
std::string name_of_types(const DTypes& types);

/// Pairs a product takes, with their outputs: all of equal types, mixed, int8, and narrowing ones.
const std::vector<DTypes>& product_types();
/// Those of two floating-point operands, and of two int8 operands.
std::vector<DTypes> float_types();
std::vector<DTypes> int8_types();
/// dy, bias and dbias of bias_grad, as lhs, rhs and out.
const std::vector<DTypes>& bias_grad_types();

using Check = Failures (*)(const Subject&, const DTypes&);

/// Runs every case, and puts the case in front of what was wrong with it. One at least must fit the
/// subject.
Failures check_all(const Subject& subject, const std::vector<Case>& cases);

/// Runs every case; each must be refused with a message that holds `reason`, and touch nothing.
Failures check_refused(const Subject& subject, const std::vector<Case>& cases,
                       const std::string& reason);

/// Sizes with empty, one-row and unaligned groups; 31 rows.
std::vector<int64_t> uneven_sizes();
/// The case with these groups and `tail` rows behind the last one.
Case with_sizes(Case test_case, std::vector<int64_t> sizes, int64_t tail);
/// Views that no fast kernel likes: padded, strided, reversed, column-major, off any alignment.
std::vector<Layout> odd_layouts(Placement form);
/// The cpu backend with a given instruction set: the others of this machine run every check, but on
/// smaller models than the best one.
bool has_given_isa(const Subject& subject);
/// int32 results take no scaling.
inline bool scales(const DTypes& types) { return types.out != DType::kI32; }

namespace gmm {
/// k = 19, n = 23, uneven sizes and a tail of 4 rows.
Case basic(const DTypes& types);
Failures right_at_tile_edges(const Subject& subject, const DTypes& types);
Failures right_for_every_partition(const Subject& subject, const DTypes& types);
Failures transposed_weights(const Subject& subject, const DTypes& types);
Failures tail_rows(const Subject& subject, const DTypes& types);
Failures group_offset(const Subject& subject, const DTypes& types);
Failures alpha_beta_and_c(const Subject& subject, const DTypes& types);
Failures c_is_not_read_without_beta(const Subject& subject, const DTypes& types);
Failures bias_and_scales(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
Failures pointer_lists(const Subject& subject, const DTypes& types);
Failures sizes_of_every_type(const Subject& subject, const DTypes& types);
Failures nan_stays_in_its_group(const Subject& subject, const DTypes& types);
Failures empty_things(const Subject& subject, const DTypes& types);
Failures packed_weights(const Subject& subject, const DTypes& types);
Failures activations(const Subject& subject, const DTypes& types);
Failures rows_by_index(const Subject& subject, const DTypes& types);
Failures any_number_of_groups(const Subject& subject, const DTypes& types);
Failures int8_sums_are_exact(const Subject& subject, const DTypes& types);
Failures model_shapes(const Subject& subject, const DTypes& types);
}  // namespace gmm

namespace tgmm {
Case basic(const DTypes& types);
Failures right_at_tile_edges(const Subject& subject, const DTypes& types);
Failures right_for_every_partition(const Subject& subject, const DTypes& types);
Failures empty_groups_give_beta_c(const Subject& subject, const DTypes& types);
Failures group_offset(const Subject& subject, const DTypes& types);
Failures alpha_beta_and_c(const Subject& subject, const DTypes& types);
Failures accumulates_in_main_grad(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
Failures pointer_lists(const Subject& subject, const DTypes& types);
Failures rows_by_index(const Subject& subject, const DTypes& types);
Failures sizes_of_every_type(const Subject& subject, const DTypes& types);
Failures nan_stays_in_its_group(const Subject& subject, const DTypes& types);
Failures empty_things(const Subject& subject, const DTypes& types);
Failures any_number_of_groups(const Subject& subject, const DTypes& types);
Failures int8_sums_are_exact(const Subject& subject, const DTypes& types);
Failures model_shapes(const Subject& subject, const DTypes& types);
}  // namespace tgmm

namespace grouped_gemm {
Case basic(const DTypes& types);
Failures every_group_has_its_own_dims(const Subject& subject, const DTypes& types);
Failures any_number_of_groups(const Subject& subject, const DTypes& types);
Failures transposes(const Subject& subject, const DTypes& types);
Failures alpha_beta_and_c(const Subject& subject, const DTypes& types);
Failures every_form_of_tensor(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
Failures nan_stays_in_its_group(const Subject& subject, const DTypes& types);
Failures empty_things(const Subject& subject, const DTypes& types);
}  // namespace grouped_gemm

namespace bias_grad {
Case basic(const DTypes& types);
Failures sums_rows_of_each_group(const Subject& subject, const DTypes& types);
Failures gradient_of_bias_scale(const Subject& subject, const DTypes& types);
Failures accumulates(const Subject& subject, const DTypes& types);
Failures group_offset_and_tail(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
Failures nan_stays_in_its_group(const Subject& subject, const DTypes& types);
Failures empty_things(const Subject& subject, const DTypes& types);
}  // namespace bias_grad

/// Strides of 0 in every form of every operand that is only read, in shapes that the fastest
/// kernels would otherwise take, too.
namespace broadcast {
Failures gmm_operands(const Subject& subject, const DTypes& types);
Failures tgmm_operands(const Subject& subject, const DTypes& types);
Failures grouped_gemm_operands(const Subject& subject, const DTypes& types);
Failures bias_grad_operands(const Subject& subject, const DTypes& types);
}  // namespace broadcast

/// Products of several blocks of every kernel, checked on a sample of their elements. Too slow for
/// the reference.
Failures gmm_large_product(const Subject& subject, const DTypes& types);
Failures tgmm_large_product(const Subject& subject, const DTypes& types);

/// A row's bits depend on nothing but the row and its weights; a group's gradient on nothing but
/// its rows.
Failures gmm_rows_are_batch_invariant(const Subject& subject, const DTypes& types);
Failures tgmm_groups_are_batch_invariant(const Subject& subject, const DTypes& types);
/// The same in a call of one row and in one of 4096.
Failures gmm_row_of_one_and_of_4096(const Subject& subject, const DTypes& types);
Failures tgmm_group_of_one_row_and_of_4096(const Subject& subject, const DTypes& types);
/// Strides above 2^31 elements in lhs, rhs and out, on memory that is never all touched. Host
/// alone.
Failures offsets_are_64_bit(const Subject& subject, const DTypes& types);

/// Products of FP8 operands with scales.
const std::vector<DTypes>& scaled_types();
namespace scaled {
Failures gmm_in_every_mode(const Subject& subject, const DTypes& types);
Failures gmm_with_everything(const Subject& subject, const DTypes& types);
Failures free_scale_strides(const Subject& subject, const DTypes& types);
Failures any_strides(const Subject& subject, const DTypes& types);
Failures tgmm_in_every_mode(const Subject& subject, const DTypes& types);
Failures grouped_gemm_in_every_mode(const Subject& subject, const DTypes& types);
Failures groups_around_a_block(const Subject& subject, const DTypes& types);
Failures nan_stays_where_it_is(const Subject& subject, const DTypes& types);
Failures rows_are_batch_invariant(const Subject& subject, const DTypes& types);
/// Results in f32's range of two scales whose product isn't. Host alone: Hopper's kernels multiply
/// the scales first.
Failures scales_whose_product_leaves_f32(const Subject& subject, const DTypes& types);
}  // namespace scaled

}  // namespace cadre::contract
