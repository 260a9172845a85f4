// Large buffers ask for huge pages. The likely gain is less in the TLB than in the second-level
// cache, which is indexed by physical addresses: a block of B that should fill half of it,
// scattered over small pages, overfills some of its sets.
#include "cpu/scratch.h"

#include <cstdint>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "core/per_thread.h"

namespace cadre::cpu {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;
/// Below this a buffer is no burden on the second-level cache, and 2 MiB would be a waste.
constexpr size_t kMinHugeBytes = size_t{256} << 10;

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

#if defined(__linux__)
/// `bytes`, a multiple of a huge page, from the system: what the heap gives back may have been
/// used, and then keeps its small pages. Null when there is no memory.
void* map_huge(size_t bytes) {
  void* memory =
      mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  // Give back what lies before and behind the aligned part.
  char* const begin = static_cast<char*>(memory);
  const size_t before = rounded_up(reinterpret_cast<uintptr_t>(begin), kHugePage) -
                        reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  if (before < kHugePage) munmap(begin + before + bytes, kHugePage - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);  // only a wish
  return begin + before;
}
#endif

}  // namespace

Scratch* Scratch::of_this_thread() {
  static PerThread<Scratch> scratches;
  return scratches.get();
}

void Scratch::release() {
#if defined(__linux__)
  if (mapped_) munmap(memory_, capacity_);
#endif
  if (!mapped_) std::free(memory_);
  memory_ = nullptr;
  capacity_ = 0;
  mapped_ = false;
}

void* Scratch::reserve(size_t bytes) {
  if (bytes <= capacity_) return memory_;
  release();
#if defined(__linux__)
  if (bytes >= kMinHugeBytes) {
    const size_t size = rounded_up(bytes, kHugePage);
    memory_ = map_huge(size);
    mapped_ = memory_ != nullptr;
    if (mapped_) capacity_ = size;
    return memory_;
  }
#endif
  const size_t size = rounded_up(bytes, kPage);
  memory_ = std::aligned_alloc(kPage, size);
  if (memory_ != nullptr) capacity_ = size;
  return memory_;
}

}  // namespace cadre::cpu
