// The Hopper kernels as families: gmm, tgmm and grouped_gemm of bf16 and f16, every epilogue,
// pointer lists included.
#pragma once

#include "cuda/kernel_family.h"

namespace cadre::sm90 {

const cuda::KernelFamily& gmm_family();
const cuda::KernelFamily& tgmm_family();
const cuda::KernelFamily& grouped_family();

}  // namespace cadre::sm90
