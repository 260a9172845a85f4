// The Hopper tgmm kernels as a family of the CUDA backend.
#pragma once

#include "cuda/kernel_family.h"

namespace cadre::sm90 {

const cuda::KernelFamily& tgmm_family();

}  // namespace cadre::sm90
