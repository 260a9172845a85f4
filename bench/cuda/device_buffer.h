// Device memory of the benchmarks, and CUDA errors as exceptions that say what was tried.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

namespace cadre::bench {

/// Throws std::runtime_error with `what` and CUDA's own words.
void require(cudaError_t error, const std::string& what);

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t size_bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* get() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  bool empty() const { return data_ == nullptr; }
  void fill_bytes(int value) const;

  template <typename T>
  static DeviceBuffer holding(const std::vector<T>& values) {
    DeviceBuffer buffer(values.size() * sizeof(T));
    buffer.upload(values.data(), values.size() * sizeof(T));
    return buffer;
  }
  template <typename T>
  std::vector<T> download() const {
    std::vector<T> values(size_bytes_ / sizeof(T));
    download(values.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  void upload(const void* host, size_t size_bytes) const;
  void download(void* host, size_t size_bytes) const;

  void* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace cadre::bench
