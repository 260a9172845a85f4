// What happens around the kernel of a product on a GPU. Rows by index are copied into the workspace
// before it where the kernel doesn't follow the index: on Hopper such a load was probed and is
// slower than a copy at the memory's full speed. FP8 with scales of mode mx is widened to bf16
// there, which has every product of a code and a power of two from 2^-124 up, since no tensor core
// before Blackwell's takes blocks of 32. An activation that the kernel doesn't apply itself follows
// it.
#pragma once

#include <cstddef>

#include "cuda/kernel_family.h"
#include "cuda/launch.h"
#include "plan/config.h"
#include "plan/operands.h"
#include "plan/problem.h"

namespace cadre::cuda {

/// The steps that a call takes beside its kernel.
struct ProductSteps {
  bool copies_rows = false;
  bool widens = false;
  bool separate_activation = false;

  static ProductSteps of(const plan::Config& config) {
    return {config.copies_rows, config.widens, config.separate_activation};
  }
};

/// Whether the operands can be widened: gmm with weights in one tensor, and tgmm of
/// column-wise copies.
bool can_widen(const plan::Problem& problem);

/// The problem as the kernel sees it: where rows are copied or widened, those of every operand
/// consecutive and aligned, and where the activation is a step of its own the pre-activation as its
/// result.
plan::Problem kernel_problem(const plan::Problem& problem, const ProductSteps& steps);

/// Bytes of workspace that the steps use, a multiple of 256.
size_t step_bytes(const plan::Problem& problem, const plan::Config& config);

/// All steps. A row index out of range is reported, and its row is zeros.
Status launch_steps(const KernelFamily& family, Launch launch, const plan::Problem& problem,
                    const plan::Config& config, const plan::Operands& operands);

}  // namespace cadre::cuda
