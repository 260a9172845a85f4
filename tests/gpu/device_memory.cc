// Device memory for the contract suites.
#include "tests/gpu/device_memory.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
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

/// A thread's copies that are waited for together. Downloads go by way of pinned memory: to any
/// other each waits for itself.
struct Together {
  static constexpr size_t kBytes = size_t{1} << 20;

  void run(const std::function<void()>& copies) {
    struct Scope {
      bool& open;
      ~Scope() { open = false; }
    };
    pending.clear();  // of copies that threw
    used = 0;
    any = false;
    {
      const Scope scope{open = true};
      copies();
    }
    if (any) finish();
  }

  void download(void* to, const void* from, size_t size_bytes) {
    if (staging == nullptr) require(cudaHostAlloc(&staging, kBytes, 0), "cudaHostAlloc");
    if (size_bytes > kBytes - used) finish();
    std::byte* const staged = static_cast<std::byte*>(staging) + used;
    require(cudaMemcpyAsync(staged, from, size_bytes, cudaMemcpyDeviceToHost, nullptr), "download");
    pending.push_back({to, staged, size_bytes});
    any = true;
    used += size_bytes;
  }

  void finish() {
    require(cudaStreamSynchronize(nullptr), "wait for copies");
    for (const Pending& copy : pending) std::memcpy(copy.to, copy.staged, copy.size_bytes);
    pending.clear();
    used = 0;
  }

  struct Pending {
    void* to;
    const std::byte* staged;
    size_t size_bytes;
  };
  bool open = false;
  bool any = false;
  void* staging = nullptr;  ///< never freed: threads are few, and the driver may be gone at exit
  size_t used = 0;
  std::vector<Pending> pending{};
};
thread_local Together copies_together;

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
    // From memory of the host's that isn't pinned: it may change as soon as this returns.
    require(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyHostToDevice, nullptr), "upload");
    // The copy may still be on its way out of a staging buffer, and streams that don't wait for the
    // default one would overtake it.
    if (!copies_together.open) require(cudaStreamSynchronize(nullptr), "upload");
    copies_together.any = true;
  }

  void download(void* to, const void* from, size_t size_bytes) override {
    if (!copies_together.open || size_bytes > Together::kBytes) {
      require(cudaMemcpy(to, from, size_bytes, cudaMemcpyDeviceToHost), "download");
    } else {
      copies_together.download(to, from, size_bytes);
    }
  }

  void together(const std::function<void()>& copies) override { copies_together.run(copies); }

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
