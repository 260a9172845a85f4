// Host memory and guarded buffers.
#include "verify/memory.h"

#include <cstring>
#include <new>

namespace cadre::verify {
namespace {

constexpr std::align_val_t kAlignment{256};

class HostMemory final : public Memory {
 public:
  Device device() const override { return {}; }
  void* allocate(size_t size_bytes) override { return ::operator new(size_bytes, kAlignment); }
  void release(void* data) override { ::operator delete(data, kAlignment); }
  void upload(void* to, const void* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  void download(void* to, const void* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  Status finish(Context& context) override { return context.check(device()); }
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

std::byte poison_of(DType dtype) {
  return is_float(dtype) || is_fp8(dtype) || dtype == DType::kE8M0 ? std::byte{0xff}
                                                                   : std::byte{0xa5};
}

GuardedBuffer::GuardedBuffer(Memory& memory, size_t size_bytes, std::byte fill)
    : memory_(memory),
      block_(memory.allocate(size_bytes + 2 * kGuardBytes)),
      before_(size_bytes + 2 * kGuardBytes, fill) {}

GuardedBuffer::~GuardedBuffer() { memory_.release(block_); }

void GuardedBuffer::upload() { memory_.upload(block_, before_.data(), before_.size()); }

void GuardedBuffer::download() {
  after_.resize(before_.size());
  memory_.download(after_.data(), block_, after_.size());
}

bool GuardedBuffer::first_change(const std::vector<bool>& may_change, int64_t* offset) const {
  if (std::memcmp(before_.data(), after_.data(), before_.size()) == 0) return false;
  for (size_t i = 0; i < before_.size(); ++i) {
    if (before_[i] == after_[i]) continue;
    const bool payload = i >= kGuardBytes && i < before_.size() - kGuardBytes;
    if (payload && !may_change.empty() && may_change[i - kGuardBytes]) continue;
    *offset = static_cast<int64_t>(i) - static_cast<int64_t>(kGuardBytes);
    return true;
  }
  return false;
}

}  // namespace cadre::verify
