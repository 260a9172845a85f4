// Weighted sums and dot products of rows, over any vector type. For kernel files only, behind the
// vectors.
#pragma once

#include "cpu/kernels/epilogue.h"
#include "cpu/kernels/row_kernel.h"

namespace cadre::cpu {
namespace {

/// Columns that one pass over the rows keeps in registers: four vectors.
enum { kRowVectors = 4 };

template <class V, class T>
void add_contiguous_rows(const WeightedRows& args, int64_t col,
                         typename V::Reg (&sums)[kRowVectors]) {
  for (int64_t i = 0; i < args.count; ++i) {
    const T* p = static_cast<const T*>(args.rows[i].data) + col;
    const auto weight = V::set1(static_cast<typename V::Elem>(args.weights[i]));
    for (int v = 0; v < kRowVectors; ++v) {
      const auto x = V::load(p + v * V::kLanes, V::kLanes);
      sums[v] = V::add(sums[v], V::mul(weight, x));
    }
  }
}

template <class V>
typename V::Reg add_rows(const WeightedRows& args, int64_t col, int64_t lanes) {
  typename V::Reg sum = V::zero();
  for (int64_t i = 0; i < args.count; ++i) {
    const auto weight = V::set1(static_cast<typename V::Elem>(args.weights[i]));
    sum = V::add(sum, V::mul(weight, load_matrix<V>(args.rows[i], 0, col, lanes)));
  }
  return sum;
}

template <class V>
void finish_columns(const WeightedRows& args, int64_t col, typename V::Reg sum, int64_t lanes) {
  for (int64_t i = 0; i < args.num_addends; ++i) {
    sum = V::add(sum, load_matrix<V>(args.addends[i], 0, col, lanes));
  }
  store_matrix<V>(args.out, 0, col, sum, lanes);
}

template <class V>
void weighted_sum_in(const WeightedRows& args) {
  constexpr int64_t kStep = kRowVectors * V::kLanes;
  int64_t col = 0;
  if (args.count > 0 && args.rows[0].col_stride == 1) {
    for (; col + kStep <= args.width; col += kStep) {
      typename V::Reg sums[kRowVectors];
      for (auto& sum : sums) sum = V::zero();
      switch (args.rows[0].dtype) {
        case DType::kF64:
          add_contiguous_rows<V, double>(args, col, sums);
          break;
        case DType::kBF16:
          add_contiguous_rows<V, Bf16>(args, col, sums);
          break;
        case DType::kF16:
          add_contiguous_rows<V, F16>(args, col, sums);
          break;
        default:
          add_contiguous_rows<V, float>(args, col, sums);
      }
      for (int v = 0; v < kRowVectors; ++v) {
        finish_columns<V>(args, col + v * V::kLanes, sums[v], V::kLanes);
      }
    }
  }
  for (; col < args.width; col += V::kLanes) {
    const int64_t lanes = args.width - col < V::kLanes ? args.width - col : V::kLanes;
    finish_columns<V>(args, col, add_rows<V>(args, col, lanes), lanes);
  }
}

template <class V>
double dot_in(const MatrixRef& a, const MatrixRef& b, int64_t width) {
  typename V::Reg sums[kRowVectors];
  for (auto& sum : sums) sum = V::zero();
  for (int64_t col = 0; col < width; col += V::kLanes) {
    const int64_t lanes = width - col < V::kLanes ? width - col : V::kLanes;
    auto& sum = sums[col / V::kLanes % kRowVectors];
    sum = V::add(sum, V::mul(load_matrix<V>(a, 0, col, lanes), load_matrix<V>(b, 0, col, lanes)));
  }
  typename V::Elem lane[V::kLanes];
  V::store(lane, V::add(V::add(sums[0], sums[1]), V::add(sums[2], sums[3])));
  typename V::Elem total = 0;
  for (const auto value : lane) total += value;
  return static_cast<double>(total);
}

template <class Narrow, class Wide>
void weighted_sum(const WeightedRows& args, bool wide) {
  if (wide) return weighted_sum_in<Wide>(args);
  weighted_sum_in<Narrow>(args);
}

template <class Narrow, class Wide>
double dot(const MatrixRef& a, const MatrixRef& b, int64_t width, bool wide) {
  return wide ? dot_in<Wide>(a, b, width) : dot_in<Narrow>(a, b, width);
}

}  // namespace
}  // namespace cadre::cpu
