// Checks that every pointer of a call is memory the device can reach, before anything is launched.
#pragma once

#include "cadre/bias_grad.h"
#include "cuda/launch.h"
#include "plan/operands.h"
#include "plan/row_call.h"

namespace cadre::cuda {

Status check_memory(const Launch& launch, const plan::Operands& operands,
                    const CallOptions& options);
Status check_memory(const Launch& launch, const BiasGradArgs& args);
Status check_memory(const Launch& launch, const plan::RowCall& call, const CallOptions& options);

}  // namespace cadre::cuda
