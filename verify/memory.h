// Memory in which tensors of a checked call live, and buffers with guard zones on both sides.
// Host memory is here; a device adds its own Memory.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "cadre/context.h"
#include "cadre/dtype.h"

namespace cadre::verify {

class Memory {
 public:
  virtual ~Memory() = default;

  virtual Device device() const = 0;
  /// At least 256-byte aligned.
  virtual void* allocate(size_t size_bytes) = 0;
  virtual void release(void* data) = 0;
  virtual void upload(void* to, const void* from, size_t size_bytes) = 0;
  virtual void download(void* to, const void* from, size_t size_bytes) = 0;
  /// Runs `copies`, whose uploads and downloads need only be done when this returns: a device waits
  /// once for all of them, where another process may have it between any two waits.
  virtual void together(const std::function<void()>& copies) { copies(); }
  /// Waits for every call that was given to the context, and reports what it met.
  virtual Status finish(Context& context) = 0;
};

Memory& host_memory();

/// A byte that makes every floating-point type NaN, and a pattern for integers.
std::byte poison_of(DType dtype);

/// `size_bytes` of some Memory between two guard zones, with an image of them on the host. Write
/// the image, upload, run, download: `before` and `after` then hold all bytes, guards included.
class GuardedBuffer {
 public:
  /// Bytes of each guard zone; also the alignment of the payload.
  static constexpr size_t kGuardBytes = 256;

  GuardedBuffer(Memory& memory, size_t size_bytes, std::byte fill);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  /// Where the payload lies in its Memory.
  void* data() const { return static_cast<std::byte*>(block_) + kGuardBytes; }
  size_t size_bytes() const { return before_.size() - 2 * kGuardBytes; }

  std::byte* before() { return before_.data() + kGuardBytes; }
  const std::byte* before() const { return before_.data() + kGuardBytes; }
  const std::byte* after() const { return after_.data() + kGuardBytes; }

  void upload();
  void download();

  /// Offset (from the payload's begin; negative in the front guard) of the first byte that differs
  /// between before and after where `may_change` (one entry for each payload byte, or empty: none
  /// may) says it must not. False when there is none.
  bool first_change(const std::vector<bool>& may_change, int64_t* offset) const;

  bool unchanged() const { return after_ == before_; }
  /// Guards included.
  const std::vector<std::byte>& all_after() const { return after_; }

 private:
  Memory& memory_;
  void* block_;
  std::vector<std::byte> before_;
  std::vector<std::byte> after_;
};

}  // namespace cadre::verify
