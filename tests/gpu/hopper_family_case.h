// What the checks of the Hopper families through the public API share: device memory, random data,
// and the comparison of two results bit by bit.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cadre/tensor.h"

namespace cadre::testing {

inline constexpr Device kGpu{DeviceKind::kCuda, 0};

inline void require(bool condition, const std::string& what) {
  if (condition) return;
  std::printf("FAIL %s\n", what.c_str());
  std::exit(1);
}

inline void require(cudaError_t error, const char* what) {
  require(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(error));
}

// Device memory that lives until the program ends.
template <typename T>
T* upload(const std::vector<T>& values) {
  void* data = nullptr;
  require(cudaMalloc(&data, values.size() * sizeof(T) + 256), "cudaMalloc");
  require(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "copy");
  return static_cast<T*>(data);
}

template <typename T>
std::vector<T> download(const T* data, size_t count) {
  std::vector<T> values(count);
  require(cudaMemcpy(values.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return values;
}

inline std::vector<uint16_t> random_bf16(size_t count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 0.5f);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    const float number = normal(generator);
    uint32_t bits;
    static_assert(sizeof bits == sizeof number);
    __builtin_memcpy(&bits, &number, 4);
    value = static_cast<uint16_t>(bits >> 16);
  }
  return values;
}

inline void compare(const std::string& name, const std::vector<uint16_t>& got,
                    const std::vector<uint16_t>& want, size_t columns) {
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i] || ((got[i] | want[i]) & 0x7fff) == 0) continue;  // -0 is 0
    std::printf("FAIL %s: row %zu column %zu is %04x, expected %04x\n", name.c_str(), i / columns,
                i % columns, got[i], want[i]);
    std::exit(1);
  }
  std::printf("ok   %s\n", name.c_str());
}

}  // namespace cadre::testing
