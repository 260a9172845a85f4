// The factors of the epilogue's formula: row_scale * (alpha * acc + bias_scale * bias) + beta * C.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/gmm_storage.cuh"

namespace cadre::sm90 {

__device__ __forceinline__ float read_factor(const FactorVector& vector, int64_t index,
                                             int64_t begin = 0) {
  const int64_t at = begin + index * vector.stride;
  switch (vector.kind) {
    case ElementKind::kBf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(vector.data)[at]);
    case ElementKind::kF16:
      return __half2float(static_cast<const __half*>(vector.data)[at]);
    case ElementKind::kF64:
      return static_cast<float>(static_cast<const double*>(vector.data)[at]);
    default:
      return static_cast<const float*>(vector.data)[at];
  }
}

// Elements first, first + 32 and so on of a vector that begins at `begin`, as far as they lie
// before `end`; the rest of `values` keeps what it holds. All loads are on their way before the
// first one is waited for.
template <int kCount>
__device__ __forceinline__ void read_factors(const FactorVector& vector, int64_t begin, int first,
                                             int end, float (&values)[kCount]) {
  const int64_t at = begin + first * vector.stride;
  const int64_t step = 32 * vector.stride;
  if (vector.kind == ElementKind::kF32) {
    const float* data = static_cast<const float*>(vector.data) + at;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + 32 * i < end) values[i] = data[i * step];
    }
  } else if (vector.kind == ElementKind::kF64) {
    const double* data = static_cast<const double*>(vector.data) + at;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + 32 * i < end) values[i] = static_cast<float>(data[i * step]);
    }
  } else {
    const uint16_t* data = static_cast<const uint16_t*>(vector.data) + at;
    uint16_t bits[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) bits[i] = first + 32 * i < end ? data[i * step] : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float value = vector.kind == ElementKind::kBf16
                              ? __uint_as_float(uint32_t{bits[i]} << 16)
                              : __half2float(__ushort_as_half(bits[i]));
      if (first + 32 * i < end) values[i] = value;
    }
  }
}

__device__ __forceinline__ bool has_bias(const EpilogueArguments& e) {
  return e.bias.data != nullptr || e.bias_list != nullptr;
}

__device__ __forceinline__ float group_beta(const EpilogueArguments& e, int group) {
  return e.beta.data != nullptr ? read_factor(e.beta, group) : e.beta_value;
}

// The factors of a thread's two features in a block (lane/4 and 8 further in its warp's 16).
struct FeatureFactors {
  float bias[2];

  template <typename Inputs>
  __device__ __forceinline__ FeatureFactors(const Inputs& inputs, int first_feature)
      : bias{inputs.bias[first_feature], inputs.bias[first_feature + 8]} {}

  __device__ __forceinline__ float apply(float acc, int h, const RowFactor& row) const {
    return fmaf(row.product, acc, row.bias * bias[h]);
  }
};

// The factors of two neighbouring tokens, the first one even.
struct RowFactorPair {
  RowFactor row[2];

  template <typename Inputs>
  __device__ __forceinline__ void read(const Inputs& inputs, int token) {
    const float4 both = *reinterpret_cast<const float4*>(&inputs.rows[token]);
    row[0] = {both.x, both.y};
    row[1] = {both.z, both.w};
  }
};

}  // namespace cadre::sm90
