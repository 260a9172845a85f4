// Elements of a type known at run time, read as and written from the type that the epilogue
// computes in.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cadre/dtype.h"

namespace cadre::sm80 {

template <typename Compute, typename T>
__device__ __forceinline__ Compute widen(T value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return static_cast<Compute>(__bfloat162float(value));
  } else if constexpr (std::is_same_v<T, __half>) {
    return static_cast<Compute>(__half2float(value));
  } else {
    return static_cast<Compute>(value);
  }
}

/// One rounding, also from double.
template <typename T, typename Compute>
__device__ __forceinline__ T narrow(Compute value) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    if constexpr (std::is_same_v<Compute, double>) {
      return __double2bfloat16(value);
    } else {
      return __float2bfloat16_rn(value);
    }
  } else if constexpr (std::is_same_v<T, __half>) {
    if constexpr (std::is_same_v<Compute, double>) {
      return __double2half(value);
    } else {
      return __float2half_rn(value);
    }
  } else {
    return static_cast<T>(value);
  }
}

/// Calls `f` with a value of the C++ type of `dtype`.
template <typename F>
__device__ __forceinline__ void with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kBF16:
      return f(__nv_bfloat16{});
    case DType::kF16:
      return f(__half{});
    case DType::kF32:
      return f(float{});
    case DType::kI8:
      return f(int8_t{});
    default:
      return f(double{});
  }
}

/// The same for the types an epilogue reads and writes.
template <typename F>
__device__ __forceinline__ void with_float_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kBF16:
      return f(__nv_bfloat16{});
    case DType::kF16:
      return f(__half{});
    case DType::kF32:
      return f(float{});
    default:
      return f(double{});
  }
}

template <typename Compute>
__device__ __forceinline__ Compute load_element(const char* data, DType dtype, int64_t index) {
  Compute value{};
  with_float_type(dtype, [&]<typename T>(T) {
    value = widen<Compute>(reinterpret_cast<const T*>(data)[index]);
  });
  return value;
}

/// Eight neighbours of one row. `count` of them exist; the rest is neither read nor written.
inline constexpr int kRun = 8;

template <typename T>
struct alignas(16) Vector16 {
  T values[16 / sizeof(T)];
};

template <typename T, typename Compute>
__device__ __forceinline__ void load_run(const T* data, int64_t stride, int count, bool vector,
                                         Compute (&out)[kRun]) {
  if (vector && count == kRun) {
    constexpr int kPerVector = 16 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kRun / kPerVector; ++i) {
      const auto part = reinterpret_cast<const Vector16<T>*>(data)[i];
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) out[i * kPerVector + j] = widen<Compute>(part.values[j]);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kRun; ++i) out[i] = i < count ? widen<Compute>(data[i * stride]) : Compute{};
}

template <typename T, typename Compute>
__device__ __forceinline__ void store_run(T* data, int64_t stride, int count, bool vector,
                                          const Compute (&in)[kRun]) {
  if (vector && count == kRun) {
    constexpr int kPerVector = 16 / static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kRun / kPerVector; ++i) {
      Vector16<T> part;
#pragma unroll
      for (int j = 0; j < kPerVector; ++j) part.values[j] = narrow<T>(in[i * kPerVector + j]);
      reinterpret_cast<Vector16<T>*>(data)[i] = part;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    if (i < count) data[i * stride] = narrow<T>(in[i]);
  }
}

}  // namespace cadre::sm80
