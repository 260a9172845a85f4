// The row ops on a CPU.
#pragma once

#include "cpu/isa.h"
#include "cpu/kernels/row_kernel.h"
#include "plan/problem.h"
#include "plan/row_call.h"

namespace cadre::cpu {

const RowKernel& find_row_kernel(Isa isa);

Status run_rows(const plan::Problem& problem, const plan::RowCall& call, const RowKernel& kernel,
                int num_threads);

}  // namespace cadre::cpu
