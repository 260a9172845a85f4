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

__device__ __forceinline__ bool has_bias(const EpilogueArguments& e) {
  return e.bias.data != nullptr || e.bias_list != nullptr;
}

__device__ __forceinline__ float group_beta(const EpilogueArguments& e, int group) {
  return e.beta.data != nullptr ? read_factor(e.beta, group) : e.beta_value;
}

// The factors of a thread's two features in a block (lane/4 and 8 further in its warp's 16).
struct FeatureFactors {
  float bias[2];

  template <typename Storage>
  __device__ __forceinline__ FeatureFactors(const Storage& shared, int first_feature)
      : bias{shared.inputs.bias[first_feature], shared.inputs.bias[first_feature + 8]} {}

  __device__ __forceinline__ float apply(float acc, int h, const RowFactor& row) const {
    return fmaf(row.product, acc, row.bias * bias[h]);
  }
};

// The factors of two neighbouring tokens, the first one even.
struct RowFactorPair {
  RowFactor row[2];

  template <typename Storage>
  __device__ __forceinline__ RowFactorPair(const Storage& shared, int token) {
    const float4 both = *reinterpret_cast<const float4*>(&shared.inputs.rows[token]);
    row[0] = {both.x, both.y};
    row[1] = {both.z, both.w};
  }
};

}  // namespace cadre::sm90
