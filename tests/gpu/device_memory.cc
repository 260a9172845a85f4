// Device memory for the contract suites.
#include "tests/gpu/device_memory.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "cuda/device.h"

namespace cadre::tests {
namespace {

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

/// Used from several threads by tests of shared contexts.
class DeviceMemory final : public verify::Memory {
 public:
  Device device() const override { return {DeviceKind::kCuda, 0}; }

  void* allocate(size_t size_bytes) override {
    const size_t rounded = cached_ ? std::bit_ceil(size_bytes) : size_bytes;
    const std::scoped_lock lock(mutex_);
    std::vector<void*>& free_blocks = free_[rounded];
    void* data = nullptr;
    if (free_blocks.empty()) {
      require(cudaMalloc(&data, rounded), "cudaMalloc");
    } else {
      data = free_blocks.back();
      free_blocks.pop_back();
    }
    sizes_[data] = rounded;
    return data;
  }

  void release(void* data) override {
    const std::scoped_lock lock(mutex_);
    const auto found = sizes_.find(data);
    if (cached_) {
      free_[found->second].push_back(data);
    } else {
      cudaFree(data);
    }
    sizes_.erase(found);
  }

  void upload(void* to, const void* from, size_t size_bytes) override {
    require(cudaMemcpy(to, from, size_bytes, cudaMemcpyHostToDevice), "upload");
    // The copy may still be on its way out of a staging buffer, and streams that don't wait for the
    // default one would overtake it.
    require(cudaStreamSynchronize(nullptr), "upload");
  }

  void download(void* to, const void* from, size_t size_bytes) override {
    require(cudaMemcpy(to, from, size_bytes, cudaMemcpyDeviceToHost), "download");
  }

  Status finish(Context& context) override { return context.check(device()); }

 private:
  const bool cached_ = std::getenv("CADRE_TEST_NO_CACHE") == nullptr;
  std::mutex mutex_;
  std::map<size_t, std::vector<void*>> free_;
  std::map<void*, size_t> sizes_;
};

}  // namespace

std::string why_no_gpu() {
  const cuda::DeviceProperties* properties = nullptr;
  const Status status = cuda::device_properties(0, &properties);
  return status.ok() ? "" : status.message();
}

verify::Memory& device_memory() {
  static auto* memory = new DeviceMemory;  // never destroyed: the driver may be gone at exit
  return *memory;
}

}  // namespace cadre::tests
