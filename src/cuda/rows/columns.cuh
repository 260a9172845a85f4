// Runs of eight columns of rows: loads, stores and sums that the row kernels share.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cuda/launch.h"
#include "cuda/rows/row_view.h"
#include "cuda/sm80/elements.cuh"

namespace cadre::rows {

using sm80::kRun;

__device__ __forceinline__ float product(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double product(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float sum_of(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ double sum_of(double a, double b) { return __dadd_rn(a, b); }

/// Eight columns as they lie in memory.
template <typename T>
struct RawRun {
  sm80::Vector16<T> parts[kRun * sizeof(T) / 16];

  __device__ __forceinline__ T at(int i) const {
    constexpr int kOfPart = 16 / static_cast<int>(sizeof(T));
    return parts[i / kOfPart].values[i % kOfPart];
  }
  __device__ __forceinline__ void set(int i, T value) {
    constexpr int kOfPart = 16 / static_cast<int>(sizeof(T));
    parts[i / kOfPart].values[i % kOfPart] = value;
  }
};

/// Over the 32 lanes of a warp, in pairs; all lanes get it.
template <typename Compute>
__device__ __forceinline__ Compute sum_of_lanes(Compute sum) {
  for (int distance = 16; distance > 0; distance /= 2) {
    sum = sum_of(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
  }
  return sum;
}

template <typename Compute>
__device__ __forceinline__ Compute element(const RowView& view, int64_t row, int64_t col) {
  return sm80::load_element<Compute>(view.data, view.dtype,
                                     row * view.row_stride + col * view.col_stride);
}

template <typename Compute>
__device__ __forceinline__ void set_element(const RowView& view, int64_t row, int64_t col,
                                            Compute value) {
  sm80::with_float_type(view.dtype, [&]<typename T>(T) {
    reinterpret_cast<T*>(view.data)[row * view.row_stride + col * view.col_stride] =
        sm80::narrow<T>(value);
  });
}

/// Columns [col, col + count) of a row of type T.
template <typename T, typename Compute>
__device__ __forceinline__ void load_columns(const RowView& view, int64_t row, int64_t col,
                                             int count, Compute (&values)[kRun]) {
  const T* at =
      reinterpret_cast<const T*>(view.data) + row * view.row_stride + col * view.col_stride;
  sm80::load_run(at, view.col_stride, count, view.vectors, values);
}

template <typename Compute>
__device__ __forceinline__ void add_columns(const RowView& view, int64_t row, int64_t col,
                                            int count, Compute (&sums)[kRun]) {
  if (view.data == nullptr) return;
  Compute values[kRun];
  sm80::with_float_type(view.dtype,
                        [&]<typename T>(T) { load_columns<T>(view, row, col, count, values); });
#pragma unroll
  for (int i = 0; i < kRun; ++i) sums[i] = sum_of(sums[i], values[i]);
}

template <typename Compute>
__device__ __forceinline__ void store_columns(const RowView& view, int64_t row, int64_t col,
                                              int count, const Compute (&values)[kRun]) {
  sm80::with_float_type(view.dtype, [&]<typename T>(T) {
    T* at = reinterpret_cast<T*>(view.data) + row * view.row_stride + col * view.col_stride;
    sm80::store_run(at, view.col_stride, count, view.vectors, values);
  });
}

/// Enough blocks for `useful` units of work, and no more than fill the device a few times.
inline unsigned blocks_for(const cuda::Launch& launch, int64_t useful) {
  return static_cast<unsigned>(std::clamp<int64_t>(useful, 1, int64_t{launch.sm_count} * 16));
}

/// f(T{}, Compute{}) with the type of a matrix and the type to compute in.
template <typename F>
Status with_types(DType dtype, DType compute, F f) {
  if (compute == DType::kF64) {
    switch (dtype) {
      case DType::kBF16:
        return f(__nv_bfloat16{}, double{});
      case DType::kF16:
        return f(__half{}, double{});
      case DType::kF32:
        return f(float{}, double{});
      default:
        return f(double{}, double{});
    }
  }
  switch (dtype) {
    case DType::kBF16:
      return f(__nv_bfloat16{}, float{});
    case DType::kF16:
      return f(__half{}, float{});
    default:
      return f(float{}, float{});
  }
}

}  // namespace cadre::rows
