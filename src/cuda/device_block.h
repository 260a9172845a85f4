// A block of zeroed device memory. It can be made at any time but in the middle of a capture by
// another thread's rules: those are lifted while it is made.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

namespace cadre::cuda {

class DeviceBlock {
 public:
  DeviceBlock() = default;
  DeviceBlock(DeviceBlock&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBlock& operator=(DeviceBlock&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~DeviceBlock() {
    if (data_ != nullptr) cudaFree(data_);
  }

  /// Zeroed memory of the current device.
  cudaError_t allocate(size_t bytes) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (const cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode); error) return error;
    const cudaError_t error = allocate_zeroed(bytes);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return error;
  }

  void* data() const { return data_; }

 private:
  cudaError_t allocate_zeroed(size_t bytes) {
    if (const cudaError_t error = cudaMalloc(&data_, bytes); error) return error;
    // On a stream of its own: the caller's may be capturing.
    cudaStream_t stream = nullptr;
    if (const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)) {
      return error;
    }
    cudaError_t error = cudaMemsetAsync(data_, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    return error;
  }

  void* data_ = nullptr;
};

}  // namespace cadre::cuda
