// What the ops share after their checks: layouts, the choice of a backend, the call.
#pragma once

#include <cstddef>
#include <vector>

#include "cadre/context.h"
#include "ops/checker.h"
#include "plan/operands.h"
#include "plan/problem.h"

namespace cadre::ops {

/// A checked call, ready for a backend.
struct Call {
  plan::Problem problem;
  plan::Operands operands;
  /// Nothing is to be written: no kernel is needed.
  bool nothing_to_do = false;
};

plan::OperandLayout layout_of(const GroupedTensor& tensor);
plan::OperandLayout layout_of(const TensorView& view);
/// As OperandLayout::alignment_bytes, of scales of `num_groups` groups.
int32_t alignment_of(const Scales& scales, int64_t num_groups);

/// Type of the accumulator: f64 where any type is f64, i32 for int8 x int8, else f32.
DType compute_dtype(DType lhs, DType rhs, DType out);

/// Checks group sizes against the rows, sums those on the host into `offsets`, and fills the
/// problem's fields about sizes.
void check_sizes(Checker& checker, const GroupSizes& sizes, const GroupOffset& group_offset,
                 Tail tail, plan::Problem* problem, std::vector<int64_t>* offsets);

/// The rows of an operand of `rows` rows: its own, or those that `index` names. Returns how many
/// the product has of them.
int64_t check_row_source(Checker& checker, std::string_view argument, int64_t rows,
                         const TensorView& index, const plan::Problem& problem,
                         plan::RowSource* source);

/// alpha, beta, accumulate and C, the same for every product. `c` of the operands becomes `out`
/// when the caller gave none.
struct ScalarArgs {
  const GroupScalars& alpha;
  const GroupScalars& beta;
  bool accumulate;
  const GroupedTensor& c;
};
void check_scalars(Checker& checker, const ScalarArgs& args, Call* call);

/// Options of a single call.
void check_options(Checker& checker, const CallOptions& options, plan::Problem* problem);

/// Rows of each local group of gmm, tgmm or bias_grad; empty when the host doesn't know them.
std::vector<int64_t> local_group_rows(const Call& call);

/// No output byte is shared with another output or with an input; C may be exactly out.
void check_overlaps(Checker& checker, const Call& call, std::string_view output);

Status run(Context& context, const Call& call, const CallOptions& options);
Status workspace_size(Context& context, const Call& call, const CallOptions& options,
                      size_t* size_bytes);

}  // namespace cadre::ops
