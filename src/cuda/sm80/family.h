// The portable kernels as a family: everything the contract asks for but fp8, on every GPU from
// compute capability 8.0.
#pragma once

#include "cuda/kernel_family.h"

namespace cadre::sm80 {

const cuda::KernelFamily& portable_family();

}  // namespace cadre::sm80
