// What the checks of the Hopper kernels share: error checks, buffers, random data.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace cadre::bench {

inline void check_cuda(cudaError_t error, const char* what, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s at line %d: %s\n", what, line, cudaGetErrorString(error));
  std::exit(1);
}
#define BENCH_CUDA(call) ::cadre::bench::check_cuda((call), #call, __LINE__)

class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t size_bytes) : size_bytes_(size_bytes) {
    BENCH_CUDA(cudaMalloc(&data_, std::max<size_t>(size_bytes, 16)));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  template <typename T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t size_bytes() const { return size_bytes_; }
  void fill_byte(int value) { BENCH_CUDA(cudaMemset(data_, value, size_bytes_)); }
  template <typename T>
  void upload(const std::vector<T>& values) {
    BENCH_CUDA(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  template <typename T>
  std::vector<T> download() const {
    std::vector<T> values(size_bytes_ / sizeof(T));
    BENCH_CUDA(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

// A hash of the index: a sum of two uniform numbers, of the given standard deviation.
__device__ inline float random_value(uint64_t index, uint32_t seed, float deviation) {
  uint32_t x = static_cast<uint32_t>(index) * 2654435761u ^
               static_cast<uint32_t>(index >> 32) * 0x9e3779b9u ^ seed;
  x ^= x >> 16;
  x *= 0x85ebca6bu;
  x ^= x >> 13;
  x *= 0xc2b2ae35u;
  x ^= x >> 16;
  const float sum = (x & 0xffff) / 65536.0f + (x >> 16) / 65536.0f - 1.0f;
  return sum * deviation * 2.4494897f;
}

template <typename T>
__global__ void fill_random(T* data, size_t count, uint32_t seed, float deviation) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < count;
       i += size_t{gridDim.x} * blockDim.x) {
    data[i] = static_cast<T>(random_value(i, seed, deviation));
  }
}

template <typename T>
void randomize(const DeviceBuffer& buffer, uint32_t seed, float deviation) {
  fill_random<<<1024, 256>>>(buffer.as<T>(), buffer.size_bytes() / sizeof(T), seed, deviation);
  BENCH_CUDA(cudaGetLastError());
}

}  // namespace cadre::bench
