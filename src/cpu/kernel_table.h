// Which kernel multiplies what on an instruction set.
#pragma once

#include <string>

#include "cpu/blocking.h"
#include "cpu/isa.h"
#include "cpu/kernels/gemm_kernel.h"
#include "plan/config.h"

namespace cadre::cpu {

/// The kernel for operands of these types summed in `compute` (f32, f64 or i32). The choice depends
/// on nothing else, so a row's bits don't depend on the number of rows. Never null for types the
/// backend takes.
const GemmKernel* find_kernel(Isa isa, DType a, DType b, DType compute);

/// What Config::choice points to in this backend.
struct CpuKernel : plan::KernelChoice {
  std::string name{};  ///< "cpu/avx512"
  Isa isa = Isa::kScalar;
  const GemmKernel* gemm = nullptr;
  Blocking blocking{};  ///< for this machine's caches
};

/// That kernel, with what it needs to run on this machine.
const CpuKernel& choose_kernel(Isa isa, DType a, DType b, DType compute);

}  // namespace cadre::cpu
