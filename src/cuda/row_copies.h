// Rows by index on a GPU: they are copied into the workspace before the product, and the kernels
// see consecutive rows. On Hopper a load that follows an index was probed and is slower than a copy
// at the memory's full speed.
#pragma once

#include <cstddef>

#include "cuda/launch.h"
#include "plan/operands.h"
#include "plan/problem.h"

namespace cadre::cuda {

/// The problem as the kernels see it: every operand's rows consecutive and aligned.
plan::Problem after_copies(const plan::Problem& problem);

/// Bytes of all copies, a multiple of 256.
size_t row_copy_bytes(const plan::Problem& problem);

/// Copies rows to the beginning of launch->workspace's scratch, which begins behind them
/// afterwards, and makes `operands` name the copies. An index out of range is reported, and its row
/// is zeros.
Status copy_rows(const plan::Problem& problem, Launch* launch, plan::Operands* operands);

}  // namespace cadre::cuda
