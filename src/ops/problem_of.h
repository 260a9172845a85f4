// The Problem that a call poses, found by the op's own checks, without running anything and without
// reading tensor data. For `cadre explain` and tests.
#pragma once

#include "cadre/activate.h"
#include "cadre/bias_grad.h"
#include "cadre/gmm.h"
#include "cadre/grouped_gemm.h"
#include "cadre/status.h"
#include "cadre/tgmm.h"
#include "ops/dispatch.h"
#include "plan/problem.h"

namespace cadre::ops {

Status problem_of(const GmmArgs& args, plan::Problem* problem);
Status problem_of(const TgmmArgs& args, plan::Problem* problem);
Status problem_of(const GroupedGemmArgs& args, plan::Problem* problem);
Status problem_of(const BiasGradArgs& args, plan::Problem* problem);
Status problem_of(const ActivateGradArgs& args, plan::Problem* problem);

/// The same with its operands.
Status call_of(const GmmArgs& args, Call* call);

}  // namespace cadre::ops
