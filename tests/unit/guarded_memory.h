// Memory whose ends can't be overstepped without the program noticing.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace cadre {

/// Memory between two pages that can't be touched. What is placed in it ends where the second one
/// begins or, at_end = false, begins where the first one ends; `shift_bytes` away from there.
class GuardedMemory {
 public:
  GuardedMemory(int64_t bytes, bool at_end, int64_t shift_bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t inside = (bytes + shift_bytes + page - 1) / page * page;
    mapped_bytes_ = static_cast<size_t>(inside + 2 * page);
    mapped_ = static_cast<char*>(
        mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const bool open = mapped_ != MAP_FAILED && mprotect(mapped_ + page, static_cast<size_t>(inside),
                                                        PROT_READ | PROT_WRITE) == 0;
    if (!open) return;
    data_ = mapped_ + page + (at_end ? inside - bytes - shift_bytes : shift_bytes);
  }
  ~GuardedMemory() {
    if (mapped_ != MAP_FAILED) munmap(mapped_, mapped_bytes_);
  }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  char* data() const { return data_; }

 private:
  char* mapped_;
  size_t mapped_bytes_;
  char* data_ = nullptr;
};

}  // namespace cadre
