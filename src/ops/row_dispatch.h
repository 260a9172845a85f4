// What the row ops share: checks of index arrays, the choice of a backend, the call.
#pragma once

#include <initializer_list>
#include <string_view>

#include "cadre/context.h"
#include "ops/checker.h"
#include "plan/problem.h"
#include "plan/row_call.h"

namespace cadre::ops {

struct NamedView {
  std::string_view argument;
  const TensorView& view;
};

/// A view of rank `rank` on the problem's device.
void check_row_operand(Checker& checker, NamedView operand, int32_t rank,
                       const plan::Problem& problem);

/// Rows by index: i32 or i64. On a CPU every index must be -1 or within [0, limit).
void check_row_indices(Checker& checker, NamedView indices, std::string_view limit_name,
                       int64_t limit);

/// The outputs share no byte with themselves, with each other, or with an input. Views that aren't
/// given count as empty.
void check_row_memory(Checker& checker, std::initializer_list<NamedView> outputs,
                      std::initializer_list<NamedView> inputs);

/// f64 where any of the views has it, else f32.
DType row_compute_dtype(std::initializer_list<NamedView> views);

Status run_rows(Context& context, const plan::Problem& problem, const plan::RowCall& call,
                const CallOptions& options);
Status rows_workspace_size(Context& context, const plan::Problem& problem,
                           const CallOptions& options, size_t* size_bytes);

}  // namespace cadre::ops
