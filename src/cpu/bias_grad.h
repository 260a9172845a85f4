// Gradients of gmm's bias and bias_scale on the CPU.
#pragma once

#include <vector>

#include "cadre/bias_grad.h"
#include "cpu/gemm_driver.h"
#include "plan/problem.h"

namespace cadre::cpu {

/// `plan` holds a kernel that widens every operand. Arguments have been checked; `offsets` as in
/// plan::Operands.
Status bias_grad(const plan::Problem& problem, const BiasGradArgs& args,
                 const std::vector<int64_t>& offsets, const GemmPlan& plan);

}  // namespace cadre::cpu
