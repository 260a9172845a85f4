// Fills PrepareArguments from a call, and launches the kernel that makes the table of groups.
#pragma once

#include "cuda/carried_words.h"
#include "cuda/launch.h"
#include "cuda/sm80/arguments.h"
#include "plan/config.h"
#include "plan/operands.h"
#include "plan/problem.h"

namespace cadre::sm80 {

/// Host sizes, dims and pointer lists are carried to the device; then the table at
/// Workspace::scratch() is made. The caller has set zeroes_other_rows.
Status prepare(const cuda::Launch& launch, const plan::Problem& problem, const plan::Config& config,
               const plan::Operands& operands, PrepareArguments* args);

/// Entries of the table.
constexpr int64_t table_groups(int64_t num_local_groups, bool zeroes_other_rows) {
  return num_local_groups + (zeroes_other_rows ? 2 : 0);
}

Status launch_prepare(const cuda::Launch& launch, const PrepareArguments& args);

}  // namespace cadre::sm80
