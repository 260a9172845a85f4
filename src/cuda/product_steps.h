// What happens around the kernel of a product on a GPU. Rows by index are copied into the workspace
// before it where the kernel doesn't follow the index: on Hopper such a load was probed and is
// slower than a copy at the memory's full speed. An activation that the kernel doesn't apply itself
// follows it.
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
  bool separate_activation = false;

  static ProductSteps of(const plan::Config& config) {
    return {config.copies_rows, config.separate_activation};
  }
};

/// The problem as the kernel sees it: where rows are copied, those of every operand consecutive and
/// aligned, and where the activation is a step of its own the pre-activation as its result.
plan::Problem kernel_problem(const plan::Problem& problem, const ProductSteps& steps);

/// Bytes of workspace that the steps use, a multiple of 256.
size_t step_bytes(const plan::Problem& problem, const plan::Config& config);

/// All steps. A row index out of range is reported, and its row is zeros.
Status launch_steps(const KernelFamily& family, Launch launch, const plan::Problem& problem,
                    const plan::Config& config, const plan::Operands& operands);

}  // namespace cadre::cuda
