// The Hopper kernels as families: gmm, tgmm and grouped_gemm of bf16, f16 and FP8, every epilogue,
// pointer lists included.
#pragma once

#include "cuda/kernel_family.h"

namespace cadre::sm90 {

const cuda::KernelFamily& gmm_family();
const cuda::KernelFamily& tgmm_family();
const cuda::KernelFamily& grouped_family();

/// Whether grouped_family() takes this gmm of FP8, which gmm_family() then leaves to it: scales of
/// blocks, many rows a group, and nothing in the epilogue but alpha, beta and C. A thread of a
/// kernel whose results lie by rows has two tokens and reads two scales of them in a stage, where
/// one whose results are transposed has 48.
bool takes_blocks_by_rows(const plan::Problem& problem, const cuda::DeviceProperties& device);

}  // namespace cadre::sm90
