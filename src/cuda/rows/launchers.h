// Launchers of the row ops, for any GPU.
#pragma once

#include <cstddef>

#include "cuda/launch.h"
#include "plan/problem.h"
#include "plan/row_call.h"

namespace cadre::rows {

struct ColumnRoom;

/// Bytes of scratch that launch() uses.
size_t scratch_bytes(const plan::Problem& problem);

Status launch(const cuda::Launch& launch, const plan::Problem& problem, const plan::RowCall& call);

Status launch_route(const cuda::Launch& launch, const RouteArgs& args);
Status launch_permute(const cuda::Launch& launch, const PermuteArgs& args);
Status launch_combine(const cuda::Launch& launch, const plan::Problem& problem,
                      const CombineArgs& args);
Status launch_combine_grad(const cuda::Launch& launch, const plan::Problem& problem,
                           const CombineGradArgs& args);
Status launch_select_experts(const cuda::Launch& launch, const plan::Problem& problem,
                             const SelectExpertsArgs& args);
Status launch_select_experts_grad(const cuda::Launch& launch, const plan::Problem& problem,
                                  const SelectExpertsGradArgs& args);
Status launch_activate(const cuda::Launch& launch, const plan::Problem& problem,
                       const ActivateArgs& args);
Status launch_activate_grad(const cuda::Launch& launch, const plan::Problem& problem,
                            const ActivateGradArgs& args);
Status launch_quantize(const cuda::Launch& launch, const plan::Problem& problem,
                       const QuantizeArgs& args);
/// `room`: of column-wise copies that may be too small for sizes in device memory.
Status launch_dequantize(const cuda::Launch& launch, const plan::Problem& problem,
                         const DequantizeArgs& args, const ColumnRoom& room);
Status launch_amax(const cuda::Launch& launch, const plan::Problem& problem, const AmaxArgs& args);
/// out[r], in f32, is the sum of parts [count][m] at r, ascending.
Status launch_sum_parts(const cuda::Launch& launch, const float* parts, int64_t count,
                        const TensorView& out);

}  // namespace cadre::rows
