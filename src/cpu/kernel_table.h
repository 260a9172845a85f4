// Which kernel multiplies what on an instruction set.
#pragma once

#include "cpu/isa.h"
#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {

/// The kernel for operands of these types summed in `compute` (f32, f64 or i32). The choice depends
/// on nothing else, so a row's bits don't depend on the number of rows. Never null for types the
/// backend takes.
const GemmKernel* find_kernel(Isa isa, DType a, DType b, DType compute);

}  // namespace cadre::cpu
