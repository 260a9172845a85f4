// The device code of the benchmarks. The product in double knows nothing of the library.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <stdexcept>

#include "bench/cuda/device_buffer.h"
#include "bench/cuda/kernels.h"

namespace cadre::bench {
namespace {

constexpr int kBlocks = 1024;
constexpr int kThreads = 256;
constexpr int kWarp = 32;

__device__ int64_t first_index() { return blockIdx.x * int64_t{blockDim.x} + threadIdx.x; }
__device__ int64_t index_step() { return int64_t{gridDim.x} * blockDim.x; }

// A hash of the index: the sum of two uniform numbers.
__device__ float random_value(int64_t index, uint32_t seed, float deviation) {
  uint32_t x = static_cast<uint32_t>(index) * 2654435761u ^
               static_cast<uint32_t>(index >> 32) * 0x9e3779b9u ^ seed;
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  x ^= x >> 16;
  constexpr float kStep = 1.0f / 65536;
  constexpr float kRootOfSix = 2.4494897f;  // the sum of the two has a deviation of 1 / sqrt(6)
  const float low = static_cast<float>(x & 0xffff) * kStep;
  const float high = static_cast<float>(x >> 16) * kStep;
  return (low + high - 1.0f) * kRootOfSix * deviation;
}

template <typename T>
__global__ void fill_kernel(T* data, int64_t count, uint32_t seed, float deviation) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    data[i] = static_cast<T>(random_value(i, seed, deviation));
  }
}

template <typename T>
__global__ void not_finite_kernel(const T* data, int64_t count, unsigned long long* bad) {
  for (int64_t i = first_index(); i < count; i += index_step()) {
    if (!isfinite(static_cast<float>(data[i]))) atomicAdd(bad, 1ull);
  }
}

__global__ void read_kernel(const uint4* data, int64_t count, uint32_t* sink) {
  uint32_t sum = 0;
  for (int64_t i = first_index(); i < count; i += index_step()) sum += data[i].x ^ data[i].w;
  if (sum == 0x12345678u) *sink = sum;  // never, but the compiler can't know: the reads stay
}

struct EmptyParameters {
  char bytes[1408];
};

__global__ void empty_kernel(const __grid_constant__ EmptyParameters) {}

__device__ double sum_of_warp(double value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// One warp for each sample.
template <typename T, typename Out>
__global__ void sample_kernel(SampleArgs args) {
  const Sample s = args.samples[blockIdx.x];
  const T* a = static_cast<const T*>(args.a) + s.a;
  const T* b = static_cast<const T*>(args.b) + s.b;
  double sum = 0;
  double magnitude = 0;
  for (int64_t i = threadIdx.x; i < s.count; i += kWarp) {
    const double term = static_cast<double>(static_cast<float>(a[i * s.a_step])) *
                        static_cast<double>(static_cast<float>(b[i * s.b_step]));
    sum += term;
    magnitude += fabs(term);
  }
  sum = sum_of_warp(sum);
  magnitude = sum_of_warp(magnitude);
  if (threadIdx.x != 0) return;
  const auto out =
      static_cast<double>(static_cast<float>(static_cast<const Out*>(args.out)[s.out]));
  args.elements[blockIdx.x] = {sum, magnitude, out};
}

// Calls `function` with a null pointer of the element type.
template <typename Function>
void with_type(DType dtype, Function function) {
  switch (dtype) {
    case DType::kF32:
      return function(static_cast<float*>(nullptr));
    case DType::kBF16:
      return function(static_cast<__nv_bfloat16*>(nullptr));
    case DType::kF16:
      return function(static_cast<__half*>(nullptr));
    default:
      throw std::logic_error("the benchmarks know f32, bf16 and f16 alone");
  }
}

}  // namespace

void fill_random(void* data, DType dtype, int64_t count, uint32_t seed, float deviation) {
  with_type(dtype, [&](auto* type) {
    fill_kernel<<<kBlocks, kThreads>>>(static_cast<decltype(type)>(data), count, seed, deviation);
  });
  require(cudaGetLastError(), "fill_random");
}

void count_not_finite(const void* data, DType dtype, int64_t count, unsigned long long* bad) {
  with_type(dtype, [&]<typename T>(T* /*type*/) {
    not_finite_kernel<<<kBlocks, kThreads>>>(static_cast<const T*>(data), count, bad);
  });
  require(cudaGetLastError(), "count_not_finite");
}

void sample_products(const SampleArgs& args) {
  if (args.num_samples == 0) return;
  const auto blocks = static_cast<unsigned>(args.num_samples);
  with_type(args.dtype, [&]<typename T>(T* /*type*/) {
    with_type(args.out_dtype,
              [&]<typename Out>(Out* /*type*/) { sample_kernel<T, Out><<<blocks, kWarp>>>(args); });
  });
  require(cudaGetLastError(), "sample_products");
}

void launch_empty(cudaStream_t stream) {
  empty_kernel<<<1, kWarp, 0, stream>>>(EmptyParameters{});
  require(cudaGetLastError(), "an empty kernel");
}

void read_bytes(const void* data, size_t size_bytes, cudaStream_t stream) {
  // The sink is the data itself: it is never written.
  read_kernel<<<kBlocks, kThreads, 0, stream>>>(static_cast<const uint4*>(data),
                                                static_cast<int64_t>(size_bytes / sizeof(uint4)),
                                                static_cast<uint32_t*>(const_cast<void*>(data)));
  require(cudaGetLastError(), "read_bytes");
}

}  // namespace cadre::bench
