// quantize, dequantize and amax on a CPU.
#pragma once

#include "cpu/kernels/row_kernel.h"
#include "cpu/row_threads.h"
#include "plan/problem.h"
#include "plan/row_call.h"

namespace cadre::cpu {

void quantize(const plan::Problem& problem, const QuantizeArgs& args, const StripeKernel& kernel,
              RowThreads& threads);
void dequantize(const plan::Problem& problem, const DequantizeArgs& args,
                const StripeKernel& kernel, RowThreads& threads);
void amax(const plan::Problem& problem, const AmaxArgs& args, const StripeKernel& kernel,
          RowThreads& threads);

}  // namespace cadre::cpu
