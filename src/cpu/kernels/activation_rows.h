// Activations of rows and their gradients, over any vector type. Columns pass through short arrays
// in the type computed in: the compiler makes vectors of the arithmetic on them, the vector type
// does the conversions. For kernel files only, behind the vectors.
#pragma once

#include "core/activation_math.h"
#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/row_kernel.h"

namespace cadre::cpu {
namespace {

inline constexpr int64_t kColumnsOfBlock = 64;
inline constexpr int64_t kPartialSums = 16;  // of a dot product, for every instruction set

template <class T>
struct alignas(64) ColumnBlockOf {
  T values[kColumnsOfBlock];
};

// Columns [col, col + count) of a row; zeros behind them.
template <class V>
void load_block(const MatrixRef& row, int64_t col, int64_t count, typename V::Elem* to) {
  for (int64_t c = 0; c < kColumnsOfBlock; c += V::kLanes) {
    const int64_t left = count - c < V::kLanes ? count - c : V::kLanes;
    V::store(to + c, left > 0 ? load_matrix<V>(row, 0, col + c, left) : V::zero());
  }
}

template <class V>
void store_block(const MatrixRef& row, int64_t col, int64_t count, const typename V::Elem* from) {
  for (int64_t c = 0; c < count; c += V::kLanes) {
    const int64_t left = count - c < V::kLanes ? count - c : V::kLanes;
    store_matrix<V>(row, 0, col + c, V::load(from + c, V::kLanes), left);
  }
}

// A block of gates and one of ups: side by side in memory, or in turn.
template <class V>
struct GateAndUp {
  using T = typename V::Elem;
  ColumnBlockOf<T> gate;
  ColumnBlockOf<T> up;

  void load(const MatrixRef& row, const RowActivation& a, int64_t col, int64_t count) {
    if (a.gated && a.interleaved) {
      T pairs[2 * kColumnsOfBlock];
      load_block<V>(row, 2 * col, 2 * count, pairs);
      load_block<V>(row, 2 * col + kColumnsOfBlock, 2 * count - kColumnsOfBlock,
                    pairs + kColumnsOfBlock);
      for (int i = 0; i < kColumnsOfBlock; ++i) {
        gate.values[i] = pairs[2 * i];
        up.values[i] = pairs[2 * i + 1];
      }
      return;
    }
    load_block<V>(row, col, count, gate.values);
    load_block<V>(row, a.width + col, a.gated ? count : 0, up.values);
  }

  void store(const MatrixRef& row, const RowActivation& a, int64_t col, int64_t count) const {
    if (a.gated && a.interleaved) {
      T pairs[2 * kColumnsOfBlock];
      for (int i = 0; i < kColumnsOfBlock; ++i) {
        pairs[2 * i] = gate.values[i];
        pairs[2 * i + 1] = up.values[i];
      }
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t left = 2 * count - half * kColumnsOfBlock;
        store_block<V>(row, 2 * col + half * kColumnsOfBlock,
                       left < kColumnsOfBlock ? left : kColumnsOfBlock,
                       pairs + half * kColumnsOfBlock);
      }
      return;
    }
    store_block<V>(row, col, count, gate.values);
    if (a.gated) store_block<V>(row, a.width + col, count, up.values);
  }
};

// Whole blocks in f32, so that the loop has a constant length; in f64 every element is a call.
template <class T>
int64_t computed_columns(int64_t count) {
  return sizeof(T) == sizeof(float) ? kColumnsOfBlock : count;
}

template <class V>
ClampParameters<typename V::Elem> clamp_of(const RowActivation& a) {
  using T = typename V::Elem;
  ClampParameters<T> clamp;
  clamp.alpha = static_cast<T>(a.alpha);
  clamp.limit = static_cast<T>(a.limit);
  clamp.up_offset = static_cast<T>(a.up_offset);
  return clamp;
}

template <class V, ActivationKind kKind>
void activate_row_as(const ActivateRow& args) {
  using T = typename V::Elem;
  const ClampParameters<T> clamp = clamp_of<V>(args.activation);
  const int64_t width = args.activation.width;
  GateAndUp<V> in;
  ColumnBlockOf<T> out = {};
  for (int64_t col = 0; col < width; col += kColumnsOfBlock) {
    const int64_t count = width - col < kColumnsOfBlock ? width - col : kColumnsOfBlock;
    in.load(args.preact, args.activation, col, count);
    for (int64_t i = 0, n = computed_columns<T>(count); i < n; ++i) {
      out.values[i] = activate_with<kKind, T>(in.gate.values[i], in.up.values[i], clamp).value;
    }
    store_block<V>(args.out, col, count, out.values);
  }
}

template <class V, ActivationKind kKind>
double activate_grad_row_as(const ActivateGradRow& args) {
  using T = typename V::Elem;
  const ClampParameters<T> clamp = clamp_of<V>(args.activation);
  const int64_t width = args.activation.width;
  const auto scale = static_cast<T>(args.scale);
  GateAndUp<V> in;
  GateAndUp<V> slopes = {};
  ColumnBlockOf<T> grad;
  ColumnBlockOf<T> scaled = {};
  ColumnBlockOf<T> products = {};
  T sums[kPartialSums] = {};
  for (int64_t col = 0; col < width; col += kColumnsOfBlock) {
    const int64_t count = width - col < kColumnsOfBlock ? width - col : kColumnsOfBlock;
    in.load(args.preact, args.activation, col, count);
    load_block<V>(args.grad, col, count, grad.values);
    for (int64_t i = 0, n = computed_columns<T>(count); i < n; ++i) {
      const Activated<T> a = activate_with<kKind, T>(in.gate.values[i], in.up.values[i], clamp);
      const T g = grad.values[i];
      products.values[i] = a.value * g;
      scaled.values[i] = scale * a.value;
      slopes.gate.values[i] = scale * g * a.d_gate;
      slopes.up.values[i] = scale * g * a.d_up;
    }
    if (args.d_preact.data != nullptr) {
      slopes.store(args.d_preact, args.activation, col, count);
    }
    if (args.activated.data != nullptr) store_block<V>(args.activated, col, count, scaled.values);
    for (int64_t i = 0; i < count; ++i) sums[i % kPartialSums] += products.values[i];
  }
  T total = 0;
  for (const T sum : sums) total += sum;
  return static_cast<double>(total);
}

template <class Narrow, class Wide>
void activate_row(const ActivateRow& args, bool wide) {
  with_activation_kind(args.activation.kind, [&](auto kind) {
    constexpr ActivationKind kKind = decltype(kind)::value;
    if (wide) return activate_row_as<Wide, kKind>(args);
    activate_row_as<Narrow, kKind>(args);
  });
}

template <class Narrow, class Wide>
double activate_grad_row(const ActivateGradRow& args, bool wide) {
  return with_activation_kind(args.activation.kind, [&](auto kind) {
    constexpr ActivationKind kKind = decltype(kind)::value;
    return wide ? activate_grad_row_as<Wide, kKind>(args)
                : activate_grad_row_as<Narrow, kKind>(args);
  });
}

}  // namespace
}  // namespace cadre::cpu
