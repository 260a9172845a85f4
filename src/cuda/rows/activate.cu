// activate: a warp owns a few hundred columns of a row. activate_grad: a warp owns a row, or a
// block where rows are long, since the dot product of a row has one order.
#include "core/activation_math.h"
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/columns.cuh"
#include "cuda/rows/launchers.h"

namespace cadre::rows {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// Columns of a warp's unit of work in activate: four runs of each lane.
constexpr int64_t kUnit = 4 * 32 * kRun;
/// From this width on a block owns a row of activate_grad. The width alone decides, so that a row's
/// dot product has one order.
constexpr int64_t kBlockWidth = 2048;

/// Where the gate and the up part of a pre-activation, or of its gradient, lie.
struct GateViews {
  RowView gate;  ///< all of the row, where there is no gate or where they lie in turn
  RowView up;
  bool gated = false;
  bool interleaved = false;

  static GateViews of(const TensorView& view, const Activation& activation, int64_t width) {
    GateViews views{.gate = RowView::of(view),
                    .up = {},
                    .gated = activation.gated(),
                    .interleaved = activation.layout == GateLayout::kInterleaved};
    if (!view.given() || !views.gated || views.interleaved) return views;
    TensorView up = view;
    up.data = static_cast<char*>(view.data) +
              width * view.strides[1] * static_cast<int64_t>(size_of(view.dtype));
    views.up = RowView::of(up);
    return views;
  }
};

template <typename T, typename Compute>
__device__ __forceinline__ void load_gates(const GateViews& views, int64_t row, int64_t col,
                                           int count, Compute (&gate)[kRun], Compute (&up)[kRun]) {
  if (!views.gated || !views.interleaved) {
    load_columns<T>(views.gate, row, col, count, gate);
    if (views.gated) {
      load_columns<T>(views.up, row, col, count, up);
      return;
    }
#pragma unroll
    for (int i = 0; i < kRun; ++i) up[i] = Compute{1};
    return;
  }
  Compute first[kRun];
  Compute second[kRun];
  load_columns<T>(views.gate, row, 2 * col, min(2 * count, kRun), first);
  load_columns<T>(views.gate, row, 2 * col + kRun, max(2 * count - kRun, 0), second);
#pragma unroll
  for (int i = 0; i < kRun / 2; ++i) {
    gate[i] = first[2 * i];
    up[i] = first[2 * i + 1];
    gate[kRun / 2 + i] = second[2 * i];
    up[kRun / 2 + i] = second[2 * i + 1];
  }
}

template <typename Compute>
__device__ __forceinline__ void store_gates(const GateViews& views, int64_t row, int64_t col,
                                            int count, const Compute (&gate)[kRun],
                                            const Compute (&up)[kRun]) {
  if (!views.gated || !views.interleaved) {
    store_columns(views.gate, row, col, count, gate);
    if (views.gated) store_columns(views.up, row, col, count, up);
    return;
  }
  Compute first[kRun];
  Compute second[kRun];
#pragma unroll
  for (int i = 0; i < kRun / 2; ++i) {
    first[2 * i] = gate[i];
    first[2 * i + 1] = up[i];
    second[2 * i] = gate[kRun / 2 + i];
    second[2 * i + 1] = up[kRun / 2 + i];
  }
  store_columns(views.gate, row, 2 * col, min(2 * count, kRun), first);
  store_columns(views.gate, row, 2 * col + kRun, max(2 * count - kRun, 0), second);
}

/// f(KindConstant) as with_activation_kind, for columns whose up part is 1 where there is no gate:
/// a kind without a gate is then the same as its gated form, which makes the kernels half as large.
template <typename F>
__device__ __forceinline__ void with_gated_kind(ActivationKind kind, F f) {
  switch (kind) {
    case ActivationKind::kSilu:
    case ActivationKind::kSwiglu:
      return f(KindConstant<ActivationKind::kSwiglu>{});
    case ActivationKind::kGeluTanh:
    case ActivationKind::kGegluTanh:
      return f(KindConstant<ActivationKind::kGegluTanh>{});
    case ActivationKind::kGeluErf:
    case ActivationKind::kGegluErf:
      return f(KindConstant<ActivationKind::kGegluErf>{});
    case ActivationKind::kClampedSwiglu:
      return f(KindConstant<ActivationKind::kClampedSwiglu>{});
    case ActivationKind::kRelu2:
      return f(KindConstant<ActivationKind::kRelu2>{});
    default:
      return f(KindConstant<ActivationKind::kNone>{});
  }
}

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

struct ActivateGradArguments {
  GateViews preact, d_preact;
  RowView grad, row_scale, activated, row_dot;
  Activation activation;
  int64_t m, width;
};

/// What the columns [col, col + count) add to the row's dot product.
template <typename T, typename Compute>
__device__ __forceinline__ Compute run_of_gradient(const ActivateGradArguments& args,
                                                   const ClampParameters<Compute>& clamp,
                                                   Compute scale, int64_t row, int64_t col) {
  const int count = static_cast<int>(min(args.width - col, int64_t{kRun}));
  Compute gate[kRun];
  Compute up[kRun];
  Compute grad[kRun];
  load_gates<T>(args.preact, row, col, count, gate, up);
  sm80::with_float_type(args.grad.dtype,
                        [&]<typename G>(G) { load_columns<G>(args.grad, row, col, count, grad); });
  Compute sum{};
  with_gated_kind(args.activation.kind, [&](auto kind) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const Activated<Compute> a = activate_with<decltype(kind)::value>(gate[i], up[i], clamp);
      // Columns that don't exist have no gradient, but a clamped gate may have a value there.
      if (i < count) sum = sum_of(sum, product(a.value, grad[i]));
      const Compute scaled = product(scale, grad[i]);
      gate[i] = product(scaled, a.d_gate);
      up[i] = product(scaled, a.d_up);
      grad[i] = product(scale, a.value);
    }
  });
  if (args.d_preact.gate.data != nullptr) {
    store_gates(args.d_preact, row, col, count, gate, up);
  }
  if (args.activated.data != nullptr) store_columns(args.activated, row, col, count, grad);
  return sum;
}

/// kLanes threads own a row: a warp or the block. Each sums its own columns, ascending; then lanes
/// in pairs; then warps, ascending.
template <typename T, typename Compute, int kLanes>
__global__ void __launch_bounds__(kThreads, sizeof(Compute) == 8 ? 1 : 2)
    activate_grad_kernel(const __grid_constant__ ActivateGradArguments args) {
  ptx::follow_grid();
  constexpr int kRows = kThreads / kLanes;
  __shared__ Compute warp_sums[kWarps];
  const ClampParameters<Compute> clamp(args.activation);
  for (int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / kLanes; row < args.m;
       row += int64_t{gridDim.x} * kRows) {
    const Compute scale =
        args.row_scale.data != nullptr ? element<Compute>(args.row_scale, row, 0) : Compute{1};
    Compute sum{};
    for (int64_t col = threadIdx.x % kLanes * kRun; col < args.width; col += kLanes * kRun) {
      sum = sum_of(sum, run_of_gradient<T>(args, clamp, scale, row, col));
    }
    if (args.row_dot.data == nullptr) continue;
    sum = sum_of_lanes(sum);
    if constexpr (kLanes > 32) {
      __syncthreads();  // warp_sums of the row before have been read
      if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = sum;
      __syncthreads();
      sum = Compute{};
      for (int warp = 0; warp < kWarps; ++warp) sum = sum_of(sum, warp_sums[warp]);
    }
    if (threadIdx.x % kLanes == 0) set_element(args.row_dot, row, 0, sum);
  }
}

/// [m] as a matrix of one column.
RowView column_of(const TensorView& vector) {
  if (!vector.given()) return {};
  return {static_cast<char*>(vector.data), vector.strides[0], 0, vector.dtype, false};
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

Status launch_activate_grad(const cuda::Launch& launch, const plan::Problem& problem,
                            const ActivateGradArgs& call) {
  // A row without columns still has a dot product.
  if (problem.m == 0 || (problem.n == 0 && !call.row_dot.given())) return {};
  const ActivateGradArguments args{
      .preact = GateViews::of(call.preact, call.activation, problem.n),
      .d_preact = GateViews::of(call.d_preact, call.activation, problem.n),
      .grad = RowView::of(call.grad),
      .row_scale = column_of(call.row_scale),
      .activated = RowView::of(call.activated),
      .row_dot = column_of(call.row_dot),
      .activation = call.activation,
      .m = problem.m,
      .width = problem.n};
  return with_types(call.preact.dtype, problem.compute, [&]<typename T, typename C>(T, C) {
    if (problem.n >= kBlockWidth) {
      return cuda::launch_kernel(
          launch, "sm80/activate_grad", activate_grad_kernel<T, C, kThreads>,
          {.blocks = blocks_for(launch, args.m), .threads = kThreads, .after_prologue = true},
          args);
    }
    return cuda::launch_kernel(launch, "sm80/activate_grad", activate_grad_kernel<T, C, 32>,
                               {.blocks = blocks_for(launch, (args.m + kWarps - 1) / kWarps),
                                .threads = kThreads,
                                .after_prologue = true},
                               args);
  });
}

}  // namespace cadre::rows
