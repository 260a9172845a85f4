// The pre-activation as activate and activate_grad see it: gates and up parts, wherever they lie.
#pragma once

#include "core/activation_math.h"
#include "cuda/rows/columns.cuh"

namespace cadre::rows {

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

}  // namespace cadre::rows
