// activate: a warp owns a few hundred columns of a row.
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/gates.cuh"
#include "cuda/rows/launchers.h"

namespace cadre::rows {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// Columns of a warp's unit of work: four runs of each lane.
constexpr int64_t kUnit = 4 * 32 * kRun;

struct ActivateArguments {
  GateViews preact;
  RowView out;
  Activation activation;
  int64_t m, width;
  int64_t units_of_row;
};

template <typename T, typename Compute>
__global__ void __launch_bounds__(kThreads)
    activate_kernel(const __grid_constant__ ActivateArguments args) {
  ptx::follow_grid();
  const ClampParameters<Compute> clamp(args.activation);
  const int64_t units = args.m * args.units_of_row;
  for (int64_t unit = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; unit < units;
       unit += int64_t{gridDim.x} * kWarps) {
    const int64_t row = unit / args.units_of_row;
    const int64_t begin = unit % args.units_of_row * kUnit;
    const int64_t end = min(begin + kUnit, args.width);
    for (int64_t col = begin + threadIdx.x % 32 * kRun; col < end; col += 32 * kRun) {
      const int count = static_cast<int>(min(end - col, int64_t{kRun}));
      Compute gate[kRun];
      Compute up[kRun];
      load_gates<T>(args.preact, row, col, count, gate, up);
      with_gated_kind(args.activation.kind, [&](auto kind) {
#pragma unroll
        for (int i = 0; i < kRun; ++i) {
          gate[i] = activate_with<decltype(kind)::value>(gate[i], up[i], clamp).value;
        }
      });
      store_columns(args.out, row, col, count, gate);
    }
  }
}

}  // namespace

Status launch_activate(const cuda::Launch& launch, const plan::Problem& problem,
                       const ActivateArgs& call) {
  if (problem.m == 0 || problem.n == 0) return {};
  const ActivateArguments args{.preact = GateViews::of(call.preact, call.activation, problem.n),
                               .out = RowView::of(call.out),
                               .activation = call.activation,
                               .m = problem.m,
                               .width = problem.n,
                               .units_of_row = (problem.n + kUnit - 1) / kUnit};
  const int64_t units = args.m * args.units_of_row;
  return with_types(call.preact.dtype, problem.compute, [&]<typename T, typename C>(T, C) {
    return cuda::launch_kernel(launch, "sm80/activate", activate_kernel<T, C>,
                               {.blocks = blocks_for(launch, (units + kWarps - 1) / kWarps),
                                .threads = kThreads,
                                .after_prologue = true},
                               args);
  });
}

}  // namespace cadre::rows
