// activate_grad: a warp owns a row, or a block where rows are long, since the dot product of a row
// has one order.
#include <type_traits>

#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/gates.cuh"
#include "cuda/rows/launchers.h"

namespace cadre::rows {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
/// From this width on a block owns a row. The width alone decides, so that a row's dot product has
/// one order.
constexpr int64_t kBlockWidth = 2048;

struct ActivateGradArguments {
  GateViews preact, d_preact;
  RowView grad, row_scale, activated, row_dot;
  Activation activation;
  int64_t m, width;
  bool vectors;  ///< all matrices have one type and lie in vectors
};

/// From the gates, up parts and gradients of eight results, of which `count` exist, to their
/// gradients and the activation times `scale`, in place; what they add to the row's dot product.
template <typename Compute>
__device__ __forceinline__ Compute gradient_of_run(ActivationKind kind,
                                                   const ClampParameters<Compute>& clamp,
                                                   Compute scale, int count, Compute (&gate)[kRun],
                                                   Compute (&up)[kRun], Compute (&grad)[kRun]) {
  Compute sum{};
  with_gated_kind(kind, [&](auto constant) {
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      const Activated<Compute> a = activate_with<decltype(constant)::value>(gate[i], up[i], clamp);
      // Columns that don't exist have no gradient, but a clamped gate may have a value there.
      if (i < count) sum = sum_of(sum, product(a.value, grad[i]));
      const Compute scaled = product(scale, grad[i]);
      gate[i] = product(scaled, a.d_gate);
      up[i] = product(scaled, a.d_up);
      grad[i] = product(scale, a.value);
    }
  });
  return sum;
}

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
  const Compute sum = gradient_of_run(args.activation.kind, clamp, scale, count, gate, up, grad);
  if (args.d_preact.gate.data != nullptr) {
    store_gates(args.d_preact, row, col, count, gate, up);
  }
  if (args.activated.data != nullptr) store_columns(args.activated, row, col, count, grad);
  return sum;
}

/// The inputs of eight results as they lie in memory, on their way.
template <typename T>
struct RawInputs {
  RawRun<T> first, second;  ///< gates and up parts, or in turn; `second` isn't read without a gate
  RawRun<T> grad;

  __device__ __forceinline__ RawInputs(const ActivateGradArguments& args, int64_t row,
                                       int64_t col) {
    const GateViews& preact = args.preact;
    if (preact.gated && preact.interleaved) {
      first = load(preact.gate, row, 2 * col);
      second = load(preact.gate, row, 2 * col + kRun);
    } else {
      first = load(preact.gate, row, col);
      if (preact.gated) second = load(preact.up, row, col);
    }
    grad = load(args.grad, row, col);
  }

  __device__ __forceinline__ static RawRun<T> load(const RowView& view, int64_t row, int64_t col) {
    return *reinterpret_cast<const RawRun<T>*>(reinterpret_cast<const T*>(view.data) +
                                               row * view.row_stride + col);
  }
};

template <typename T>
__device__ __forceinline__ void store_raw(const RowView& view, int64_t row, int64_t col,
                                          const float (&values)[kRun]) {
  RawRun<T> run;
#pragma unroll
  for (int i = 0; i < kRun; ++i) run.set(i, sm80::narrow<T>(values[i]));
  *reinterpret_cast<RawRun<T>*>(reinterpret_cast<T*>(view.data) + row * view.row_stride + col) =
      run;
}

/// What eight columns add to the row's dot product: the arithmetic of run_of_gradient.
template <typename T>
__device__ __forceinline__ float raw_run_of_gradient(const ActivateGradArguments& args,
                                                     const ClampParameters<float>& clamp,
                                                     float scale, int64_t row, int64_t col,
                                                     const RawInputs<T>& in) {
  const bool pairs = args.preact.gated && args.preact.interleaved;
  float gate[kRun];
  float up[kRun];
  float grad[kRun];
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    const T pair_gate = i < kRun / 2 ? in.first.at(2 * i) : in.second.at(2 * i - kRun);
    const T pair_up = i < kRun / 2 ? in.first.at(2 * i + 1) : in.second.at(2 * i + 1 - kRun);
    gate[i] = sm80::widen<float>(pairs ? pair_gate : in.first.at(i));
    up[i] = args.preact.gated ? sm80::widen<float>(pairs ? pair_up : in.second.at(i)) : 1.0f;
    grad[i] = sm80::widen<float>(in.grad.at(i));
  }
  const float sum = gradient_of_run(args.activation.kind, clamp, scale, kRun, gate, up, grad);
  if (args.d_preact.gate.data != nullptr) {
    if (pairs) {
      float first[kRun];
      float second[kRun];
#pragma unroll
      for (int i = 0; i < kRun / 2; ++i) {
        first[2 * i] = gate[i];
        first[2 * i + 1] = up[i];
        second[2 * i] = gate[kRun / 2 + i];
        second[2 * i + 1] = up[kRun / 2 + i];
      }
      store_raw<T>(args.d_preact.gate, row, 2 * col, first);
      store_raw<T>(args.d_preact.gate, row, 2 * col + kRun, second);
    } else {
      store_raw<T>(args.d_preact.gate, row, col, gate);
      if (args.preact.gated) store_raw<T>(args.d_preact.up, row, col, up);
    }
  }
  if (args.activated.data != nullptr) store_raw<T>(args.activated, row, col, grad);
  return sum;
}

/// A lane's columns of a row of one type in vectors, two runs ahead.
template <typename T, int kLanes>
__device__ __forceinline__ float stream_row(const ActivateGradArguments& args,
                                            const ClampParameters<float>& clamp, float scale,
                                            int64_t row) {
  constexpr int64_t kStep = int64_t{kLanes} * kRun;
  int64_t col = threadIdx.x % kLanes * kRun;
  float sum = 0.0f;
  if (col >= args.width) return sum;
  const int64_t last = args.width - kRun;
  // Behind the row's end a run is read again and not used.
  RawInputs<T> here(args, row, col);
  RawInputs<T> next(args, row, min(col + kStep, last));
  while (true) {
    const RawInputs<T> then(args, row, min(col + 2 * kStep, last));
    sum = sum_of(sum, raw_run_of_gradient<T>(args, clamp, scale, row, col, here));
    col += kStep;
    if (col >= args.width) return sum;
    here = next;
    next = then;
  }
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
    bool streamed = false;
    if constexpr (std::is_same_v<Compute, float>) {
      streamed = args.vectors;
      if (streamed) sum = stream_row<T, kLanes>(args, clamp, scale, row);
    }
    for (int64_t col = threadIdx.x % kLanes * kRun; !streamed && col < args.width;
         col += kLanes * kRun) {
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

Status launch_activate_grad(const cuda::Launch& launch, const plan::Problem& problem,
                            const ActivateGradArgs& call) {
  // A row without columns still has a dot product.
  if (problem.m == 0 || (problem.n == 0 && !call.row_dot.given())) return {};
  const auto in_same_vectors = [&](const TensorView& view) {
    return !view.given() || (view.dtype == call.preact.dtype && in_vectors(view));
  };
  const ActivateGradArguments args{
      .preact = GateViews::of(call.preact, call.activation, problem.n),
      .d_preact = GateViews::of(call.d_preact, call.activation, problem.n),
      .grad = RowView::of(call.grad),
      .row_scale = column_of(call.row_scale),
      .activated = RowView::of(call.activated),
      .row_dot = column_of(call.row_dot),
      .activation = call.activation,
      .m = problem.m,
      .width = problem.n,
      .vectors = problem.n > 0 && problem.n % kRun == 0 && in_same_vectors(call.preact) &&
                 in_same_vectors(call.grad) && in_same_vectors(call.d_preact) &&
                 in_same_vectors(call.activated)};
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
