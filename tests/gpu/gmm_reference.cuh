// A plain device reference for gmm with the full epilogue, and the comparison of a result against
// it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace cadre::testing {

// Row r's group: -1 where no local group holds it.
struct ReferenceCall {
  const int* group_of_row;
  int m, n, k;
  const void* lhs;
  int64_t lhs_stride;
  const void* rhs;
  int64_t rhs_group_stride, rhs_row_stride;
  bool transposed_rhs;
  const float* alpha;
  const float* beta;
  const float* bias;
  const float* row_scale;
  const float* bias_scale;
  const void* c;
  int64_t c_stride;
};

template <typename T, typename Out>
__global__ void gmm_reference(ReferenceCall call, float* out, float* magnitude) {
  const int64_t index = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (index >= int64_t{call.m} * call.n) return;
  const int row = static_cast<int>(index / call.n);
  const int column = static_cast<int>(index % call.n);
  const int group = call.group_of_row[row];
  float value = 0;
  float size = 0;
  if (group >= 0) {
    const T* a = static_cast<const T*>(call.lhs) + row * call.lhs_stride;
    const T* b = static_cast<const T*>(call.rhs) + group * call.rhs_group_stride;
    double sum = 0;
    for (int i = 0; i < call.k; ++i) {
      const int64_t at =
          call.transposed_rhs ? column * call.rhs_row_stride + i : i * call.rhs_row_stride + column;
      const double product =
          static_cast<double>(static_cast<float>(a[i])) * static_cast<float>(b[at]);
      sum += product;
      size += static_cast<float>(fabs(product));
    }
    const float alpha = call.alpha != nullptr ? call.alpha[group] : 1.0f;
    const float scale = call.row_scale != nullptr ? call.row_scale[row] : 1.0f;
    double total = alpha * sum;
    size *= fabsf(alpha);
    if (call.bias != nullptr) {
      const double bias =
          call.bias[static_cast<int64_t>(group) * call.n + column] *
          static_cast<double>(call.bias_scale != nullptr ? call.bias_scale[row] : 1.0f);
      total += bias;
      size += static_cast<float>(fabs(bias));
    }
    total *= scale;
    size *= fabsf(scale);
    if (call.c != nullptr && call.beta[group] != 0.0f) {
      const double c =
          call.beta[group] * static_cast<double>(static_cast<float>(
                                 static_cast<const Out*>(call.c)[row * call.c_stride + column]));
      total += c;
      size += static_cast<float>(fabs(c));
    }
    value = static_cast<float>(total);
  }
  out[index] = value;
  magnitude[index] = size;
}

}  // namespace cadre::testing
