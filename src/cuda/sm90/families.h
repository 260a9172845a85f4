// The Hopper kernels as families: gmm and tgmm of bf16 and f16, every epilogue, pointer lists
// included.
#pragma once

#include "cuda/kernel_family.h"

namespace cadre::sm90 {

const cuda::KernelFamily& gmm_family();
const cuda::KernelFamily& tgmm_family();

}  // namespace cadre::sm90
