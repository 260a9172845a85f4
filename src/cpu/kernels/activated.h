// The epilogue with an activation: sums are scaled and biased, written as the pre-activation if
// that is asked for, activated in the precision of the sums and rounded into D. For the files
// activated_<isa>.cc only: their loops are turned into vector code by the compiler.
#pragma once

#include <cstdint>

#include "core/activation_math.h"
#include "cpu/kernels/epilogue.h"

namespace cadre::cpu {
namespace {

// A row of a panel, in the precision of the epilogue.
template <class V, int kNr>
struct alignas(64) PanelRow {
  using Elem = typename V::Elem;
  Elem x[kNr];

  void store(const MatrixRef& m, int64_t row, int64_t col, int64_t cols) const {
    for (int64_t j = 0; j < cols; j += V::kLanes) {
      const int64_t lanes = cols - j < V::kLanes ? cols - j : V::kLanes;
      store_matrix<V>(m, row, col + j, V::load(x + j, V::kLanes), lanes);
    }
  }
};

// What is left of lanes that pass through the type of the result.
template <class V, class T>
typename V::Reg through(typename V::Reg x) {
  T rounded[V::kLanes];
  V::store(rounded, x, V::kLanes);
  asm volatile("" ::"r"(rounded) : "memory");  // GCC 12 folds f64 -> f32 -> f64 of two lanes away
  return V::load(rounded, V::kLanes);
}

template <class V>
typename V::Reg rounded_to(DType dtype, typename V::Reg x) {
  switch (dtype) {
    case DType::kBF16:
      return through<V, Bf16>(x);
    case DType::kF16:
      return through<V, F16>(x);
    case DType::kF32:
      return sizeof(typename V::Elem) == 4 ? x : through<V, float>(x);
    default:
      return x;
  }
}

// row_scale * (alpha * acc + bias_scale * bias) of one row of a panel, rounded to D's type, so that
// the activation is one of the pre-activation as it is saved. Tiles and bias are whole
// panels, whatever of them is used.
template <class V, class Acc, int kNr>
struct Sums {
  using Elem = typename V::Elem;
  const EpilogueArgs& e;
  int64_t row;
  Elem row_scale, bias_scale;

  Sums(const EpilogueArgs& args, int64_t r)
      : e(args),
        row(r),
        row_scale(args.row_scale.data ? element_of<Elem>(args.row_scale, r) : Elem{1}),
        bias_scale(args.bias_scale.data ? element_of<Elem>(args.bias_scale, r) : Elem{1}) {}

  PanelRow<V, kNr> of_panel(const void* sums, const void* biases, int64_t panel) const {
    PanelRow<V, kNr> result;
    const char* tile = static_cast<const char*>(sums) + panel * e.acc_panel_bytes;
    const Acc* acc = reinterpret_cast<const Acc*>(tile) + row * kNr;
    const Elem* bias = static_cast<const Elem*>(biases);
    for (int64_t j = 0; j < kNr; j += V::kLanes) {
      typename V::Reg x = V::load(acc + j, V::kLanes);
      if (e.alpha != 1.0) x = V::mul(V::set1(static_cast<Elem>(e.alpha)), x);
      if (bias) {
        const typename V::Reg lanes = V::load(bias + panel * kNr + j, V::kLanes);
        x = V::add(x, V::mul(V::set1(bias_scale), lanes));
      }
      if (e.row_scale.data) x = V::mul(V::set1(row_scale), x);
      V::store(result.x + j, rounded_to<V>(e.d.dtype, x));
    }
    return result;
  }
};

template <class V, class Acc, int kNr, ActivationKind kKind>
void activated_rows(const EpilogueArgs& e) {
  using Elem = typename V::Elem;
  constexpr bool kGated = Activation{.kind = kKind}.gated();
  const ActivationStep& step = *e.step;
  const ClampParameters<Elem> clamp(step.activation);
  const bool writes_pre = step.pre.data != nullptr;
  for (int64_t r = 0; r < e.rows; ++r) {
    const Sums<V, Acc, kNr> sums(e, r);
    PanelRow<V, kNr> y;
    if (kGated && step.activation.layout == GateLayout::kInterleaved) {
      constexpr int kHalf = kNr / 2;
      for (int64_t j = 0; j < e.cols; j += kHalf) {
        const int64_t cols = e.cols - j < kHalf ? e.cols - j : kHalf;
        const PanelRow<V, kNr> pairs = sums.of_panel(e.acc, e.bias, j / kHalf);
        if (writes_pre) pairs.store(step.pre, r, 2 * j, 2 * cols);
        for (int i = 0; i < kHalf; ++i)
          y.x[i] = activate_with<kKind, Elem>(pairs.x[2 * i], pairs.x[2 * i + 1], clamp).value;
        y.store(e.d, r, j, cols);
      }
      continue;
    }
    for (int64_t j = 0; j < e.cols; j += kNr) {
      const int64_t cols = e.cols - j < kNr ? e.cols - j : kNr;
      const PanelRow<V, kNr> gate =
          sums.of_panel(kGated ? e.gate_acc : e.acc, kGated ? e.gate_bias : e.bias, j / kNr);
      if (writes_pre) gate.store(step.pre, r, j, cols);
      if constexpr (kGated) {
        const PanelRow<V, kNr> up = sums.of_panel(e.acc, e.bias, j / kNr);
        if (writes_pre) up.store(step.pre, r, e.up_columns + j, cols);
        for (int i = 0; i < kNr; ++i)
          y.x[i] = activate_with<kKind, Elem>(gate.x[i], up.x[i], clamp).value;
      } else {
        for (int i = 0; i < kNr; ++i)
          y.x[i] = activate_with<kKind, Elem>(gate.x[i], Elem{0}, clamp).value;
      }
      y.store(e.d, r, j, cols);
    }
  }
}

template <class V, class Acc, int kNr>
void activated(const EpilogueArgs& e) {
  with_activation_kind(e.step->activation.kind,
                       [&](auto kind) { activated_rows<V, Acc, kNr, decltype(kind)::value>(e); });
}

}  // namespace
}  // namespace cadre::cpu
