// Device memory of the benchmarks.
#include "bench/cuda/device_buffer.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/text.h"

namespace cadre::bench {

void require(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(text(what, ": ", cudaGetErrorString(error)));
}

DeviceBuffer::DeviceBuffer(size_t size_bytes) : size_bytes_(size_bytes) {
  constexpr size_t kLeast = 16;  // so that an empty tensor has an address too
  require(cudaMalloc(&data_, std::max(size_bytes, kLeast)),
          text("cudaMalloc of ", size_bytes, " bytes"));
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void DeviceBuffer::fill_bytes(int value) const {
  require(cudaMemset(data_, value, size_bytes_), "cudaMemset");
}

void DeviceBuffer::upload(const void* host, size_t size_bytes) const {
  require(cudaMemcpy(data_, host, size_bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void DeviceBuffer::download(void* host, size_t size_bytes) const {
  require(cudaMemcpy(host, data_, size_bytes, cudaMemcpyDeviceToHost),
          "cudaMemcpy from the device");
}

}  // namespace cadre::bench
