// The epilogue: row_scale * (alpha * acc + bias_scale * bias) + beta * C, in the accumulator's own
// precision (f64 for int32 sums with options), rounded once into D. For kernel files only.
#pragma once

#include <cstdint>

#include "cpu/kernels/element.h"
#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {
namespace {

template <class T>
T element_of(const VectorRef& v, int64_t i) {
  switch (v.dtype) {
    case DType::kF64:
      return static_cast<T>(read_one(static_cast<const double*>(v.data) + i * v.stride));
    case DType::kF32:
      return static_cast<T>(read_one(static_cast<const float*>(v.data) + i * v.stride));
    case DType::kBF16:
      return static_cast<T>(widen_one(read_one(static_cast<const Bf16*>(v.data) + i * v.stride)));
    default:
      return static_cast<T>(widen_one(read_one(static_cast<const F16*>(v.data) + i * v.stride)));
  }
}

template <class V, class T>
typename V::Reg load_lanes(const MatrixRef& m, int64_t row, int64_t col, int64_t lanes) {
  const T* p = static_cast<const T*>(m.data) + row * m.row_stride + col * m.col_stride;
  if (m.col_stride == 1) return V::load(p, lanes);
  T gathered[V::kLanes] = {};
  for (int64_t i = 0; i < lanes; ++i) gathered[i] = read_one(p + i * m.col_stride);
  return V::load(gathered, lanes);
}

template <class V>
typename V::Reg load_matrix(const MatrixRef& m, int64_t row, int64_t col, int64_t lanes) {
  switch (m.dtype) {
    case DType::kF64:
      return load_lanes<V, double>(m, row, col, lanes);
    case DType::kBF16:
      return load_lanes<V, Bf16>(m, row, col, lanes);
    case DType::kF16:
      return load_lanes<V, F16>(m, row, col, lanes);
    case DType::kI32:
      return load_lanes<V, int32_t>(m, row, col, lanes);
    default:
      return load_lanes<V, float>(m, row, col, lanes);
  }
}

template <class V, class T>
void store_lanes(const MatrixRef& m, int64_t row, int64_t col, typename V::Reg x, int64_t lanes) {
  T* p = static_cast<T*>(m.data) + row * m.row_stride + col * m.col_stride;
  if (m.col_stride == 1) return V::store(p, x, lanes);
  T rounded[V::kLanes];
  V::store(rounded, x, V::kLanes);
  for (int64_t i = 0; i < lanes; ++i) write_one(p + i * m.col_stride, rounded[i]);
}

template <class V>
void store_matrix(const MatrixRef& m, int64_t row, int64_t col, typename V::Reg x, int64_t lanes) {
  switch (m.dtype) {
    case DType::kF64:
      return store_lanes<V, double>(m, row, col, x, lanes);
    case DType::kBF16:
      return store_lanes<V, Bf16>(m, row, col, x, lanes);
    case DType::kF16:
      return store_lanes<V, F16>(m, row, col, x, lanes);
    case DType::kI32:
      return store_lanes<V, int32_t>(m, row, col, x, lanes);
    default:
      return store_lanes<V, float>(m, row, col, x, lanes);
  }
}

// alpha 1 and nothing else, into rows of the accumulators' own type: a copy (C added, if asked
// for).
template <class V, int kNr>
void copy_rows(const EpilogueArgs& e) {
  using Elem = typename V::Elem;
  const bool past_cache = e.past_cache && e.beta == 0.0;
  for (int64_t r = 0; r < e.rows; ++r) {
    Elem* d = static_cast<Elem*>(e.d.data) + r * e.d.row_stride;
    const Elem* c = static_cast<const Elem*>(e.c.data) + r * e.c.row_stride;
    for (int64_t j0 = 0; j0 < e.cols; j0 += kNr) {
      const char* tile = static_cast<const char*>(e.acc) + j0 / kNr * e.acc_panel_bytes;
      const Elem* acc = reinterpret_cast<const Elem*>(tile) + r * kNr;
      const int64_t cols = e.cols - j0 < kNr ? e.cols - j0 : kNr;
      for (int64_t j = 0; j < cols; j += V::kLanes) {
        typename V::Reg x = V::load(acc + j, V::kLanes);
        if (e.beta != 0.0) x = V::add(x, V::load(c + j0 + j, cols - j));
        Elem* p = d + j0 + j;
        if (cols - j < V::kLanes) {
          V::store(p, x, cols - j);
        } else if (past_cache && reinterpret_cast<uintptr_t>(p) % sizeof(x) == 0) {
          V::store_past_cache(p, x);
        } else {
          V::store(p, x);
        }
      }
    }
  }
  if (past_cache) V::finish_past_cache();
}

// alpha 1 and nothing else, into rows of a narrower type.
template <class V, class T, int kNr>
void round_rows(const EpilogueArgs& e) {
  using Elem = typename V::Elem;
  for (int64_t r = 0; r < e.rows; ++r) {
    T* d = static_cast<T*>(e.d.data) + r * e.d.row_stride;
    for (int64_t j0 = 0; j0 < e.cols; j0 += kNr) {
      const char* tile = static_cast<const char*>(e.acc) + j0 / kNr * e.acc_panel_bytes;
      const Elem* acc = reinterpret_cast<const Elem*>(tile) + r * kNr;
      const int64_t cols = e.cols - j0 < kNr ? e.cols - j0 : kNr;
      for (int64_t j = 0; j < cols; j += V::kLanes) {
        const int64_t lanes = cols - j < V::kLanes ? cols - j : V::kLanes;
        V::store(d + j0 + j, V::load(acc + j, V::kLanes), lanes);
      }
    }
  }
}

// V: the vector the formula is computed in; Acc: what the accumulators are; kNr: columns of a tile.
template <class V, class Acc, int kNr>
void epilogue_float(const EpilogueArgs& e) {
  using Elem = typename V::Elem;
  if constexpr (sizeof(Elem) == sizeof(Acc)) {
    constexpr DType kOwn = sizeof(Elem) == 4 ? DType::kF32 : DType::kF64;
    const bool adds_c = e.beta == 1.0 && e.c.dtype == kOwn && e.c.col_stride == 1;
    if (e.alpha == 1.0 && (e.beta == 0.0 || adds_c) && !e.bias && !e.row_scale.data &&
        e.d.dtype == kOwn && e.d.col_stride == 1) {
      return copy_rows<V, kNr>(e);
    }
    if (e.alpha == 1.0 && e.beta == 0.0 && !e.bias && !e.row_scale.data && e.d.col_stride == 1) {
      if (e.d.dtype == DType::kBF16) return round_rows<V, Bf16, kNr>(e);
      if (e.d.dtype == DType::kF16) return round_rows<V, F16, kNr>(e);
    }
  }
  const typename V::Reg alpha = V::set1(static_cast<Elem>(e.alpha));
  const typename V::Reg beta = V::set1(static_cast<Elem>(e.beta));
  const Elem* bias = static_cast<const Elem*>(e.bias);
  for (int64_t r = 0; r < e.rows; ++r) {
    const Elem row_scale = e.row_scale.data ? element_of<Elem>(e.row_scale, r) : Elem{1};
    const Elem bias_scale = e.bias_scale.data ? element_of<Elem>(e.bias_scale, r) : Elem{1};
    for (int64_t j = 0; j < e.cols; j += V::kLanes) {
      const int64_t lanes = e.cols - j < V::kLanes ? e.cols - j : V::kLanes;
      const char* tile = static_cast<const char*>(e.acc) + j / kNr * e.acc_panel_bytes;
      typename V::Reg x =
          V::load(reinterpret_cast<const Acc*>(tile) + r * kNr + j % kNr, V::kLanes);
      if (e.alpha != 1.0) x = V::mul(alpha, x);
      if (bias) {
        const typename V::Reg bias_lanes = V::load(bias + j, lanes);
        x = V::add(x, V::mul(V::set1(bias_scale), bias_lanes));
      }
      if (e.row_scale.data) x = V::mul(V::set1(row_scale), x);
      if (e.beta != 0.0) x = V::add(x, V::mul(beta, load_matrix<V>(e.c, r, j, lanes)));
      store_matrix<V>(e.d, r, j, x, lanes);
    }
  }
}

// Sums of FP8 codes, with the scales of their k values. Each sum is rounded by both scales in turn,
// so that neither a zero sum nor a finite one meets a product of scales that isn't finite.
template <class V, int kNr>
void add_scaled_sums(const ScaledArgs& s) {
  using Elem = typename V::Elem;
  for (int64_t panel = 0; panel < s.panels; ++panel) {
    const Elem* sums =
        reinterpret_cast<const Elem*>(static_cast<const char*>(s.sums) + panel * s.acc_panel_bytes);
    Elem* total = reinterpret_cast<Elem*>(static_cast<char*>(s.total) + panel * s.acc_panel_bytes);
    const float* columns = s.column_scales + panel * kNr;
    for (int64_t r = 0; r < s.rows; ++r, sums += kNr, total += kNr) {
      const typename V::Reg row = V::set1(static_cast<Elem>(s.row_scales[r]));
      for (int64_t j = 0; j < kNr; j += V::kLanes) {
        const typename V::Reg scaled = V::mul(V::load(sums + j, V::kLanes), row);
        const typename V::Reg column = V::load(columns + j, V::kLanes);
        V::store(total + j, s.first ? V::mul(scaled, column)
                                    : V::fma(scaled, column, V::load(total + j, V::kLanes)));
      }
    }
  }
}

// int32 sums: plain ones (int32 out, at most `accumulate`) stay in wrapping integers; everything
// else goes through f64, which holds every int32 exactly.
template <class V, int kNr>
void epilogue_int32(const EpilogueArgs& e) {
  const bool plain = e.d.dtype == DType::kI32 && e.alpha == 1.0 &&
                     (e.beta == 0.0 || e.beta == 1.0) && !e.bias && !e.row_scale.data &&
                     (e.beta == 0.0 || e.c.dtype == DType::kI32);
  if (!plain) return epilogue_float<V, int32_t, kNr>(e);
  for (int64_t r = 0; r < e.rows; ++r) {
    for (int64_t j0 = 0; j0 < e.cols; j0 += kNr) {
      const char* tile = static_cast<const char*>(e.acc) + j0 / kNr * e.acc_panel_bytes;
      const uint32_t* acc = reinterpret_cast<const uint32_t*>(tile) + r * kNr;
      const int64_t cols = e.cols - j0 < kNr ? e.cols - j0 : kNr;
      const uint32_t* c =
          static_cast<const uint32_t*>(e.c.data) + r * e.c.row_stride + j0 * e.c.col_stride;
      uint32_t* d = static_cast<uint32_t*>(e.d.data) + r * e.d.row_stride + j0 * e.d.col_stride;
      for (int64_t j = 0; j < cols; ++j) {
        const uint32_t before = e.beta != 0.0 ? read_one(c + j * e.c.col_stride) : 0u;
        write_one(d + j * e.d.col_stride, acc[j] + before);
      }
    }
  }
}

}  // namespace
}  // namespace cadre::cpu
