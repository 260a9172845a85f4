// The device code of the benchmarks: random operands, a cache flush, and a plain product of sampled
// elements in double, which is what results are checked against.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cadre/dtype.h"

namespace cadre::bench {

/// One element of a result: where its terms lie, counted in elements.
struct Sample {
  int64_t a, a_step;
  int64_t b, b_step;
  int64_t count;
  int64_t out;
};

struct SampledElement {
  double sum;        ///< of the products of its terms
  double magnitude;  ///< of their absolute values
  double out;        ///< what the output holds
};

/// f32, bf16 or f16 of about this standard deviation, a function of seed and index alone.
void fill_random(void* data, DType dtype, int64_t count, uint32_t seed, float deviation);

/// Elements that are NaN or infinite are counted into *bad (device memory).
void count_not_finite(const void* data, DType dtype, int64_t count, unsigned long long* bad);

/// Operands of `dtype` (bf16 or f16), output of `out_dtype`; every pointer on the device.
struct SampleArgs {
  const void* a;
  const void* b;
  DType dtype;
  const void* out;
  DType out_dtype;
  const Sample* samples;
  int64_t num_samples;
  SampledElement* elements;
};
void sample_products(const SampleArgs& args);

/// A kernel that does nothing, with about as many parameters as a call of the library has.
void launch_empty(cudaStream_t stream);

/// Reads all of it.
void read_bytes(const void* data, size_t size_bytes, cudaStream_t stream);

}  // namespace cadre::bench
