// From a checked row op to its launcher.
#include "cuda/rows/launchers.h"
#include "cuda/rows/quantize_bands.h"
#include "cuda/rows/route_plan.h"

namespace cadre::rows {

size_t scratch_bytes(const plan::Problem& problem) {
  if (problem.op >= plan::Op::kQuantize) return bands_bytes(problem);
  if (problem.op != plan::Op::kRoute) return 0;
  // The counters, and the number of rows in front of them; a cluster would need none.
  const RoutePlan plan = RoutePlan::of(problem.m, problem.num_groups, false);
  if (plan.blocks > 0) return 0;
  return static_cast<size_t>(plan.counters() + 1) * sizeof(uint32_t);
}

Status launch(const cuda::Launch& launch, const plan::Problem& problem, const plan::RowCall& call) {
  return std::visit(
      plan::EachOf{
          [&](const RouteArgs* args) { return launch_route(launch, *args); },
          [&](const PermuteArgs* args) { return launch_permute(launch, *args); },
          [&](const CombineArgs* args) { return launch_combine(launch, problem, *args); },
          [&](const CombineGradArgs* args) { return launch_combine_grad(launch, problem, *args); },
          [&](const SelectExpertsArgs* args) {
            return launch_select_experts(launch, problem, *args);
          },
          [&](const SelectExpertsGradArgs* args) {
            return launch_select_experts_grad(launch, problem, *args);
          },
          [&](const ActivateArgs* args) { return launch_activate(launch, problem, *args); },
          [&](const ActivateGradArgs* args) {
            return launch_activate_grad(launch, problem, *args);
          },
          [&](const QuantizeArgs* args) { return launch_quantize(launch, problem, *args); },
          [&](const DequantizeArgs* args) { return launch_dequantize(launch, problem, *args, {}); },
          [&](const AmaxArgs* args) { return launch_amax(launch, problem, *args); }},
      call);
}

}  // namespace cadre::rows
