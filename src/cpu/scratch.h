// Memory for packed panels and accumulators: one growing buffer for each thread, kept between
// calls.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace cadre::cpu {

class Scratch {
 public:
  /// At least `bytes`, aligned to a page; null when there is no memory. Contents are not kept.
  void* reserve(size_t bytes) {
    if (bytes <= capacity_) return memory_.get();
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    memory_.reset();
    capacity_ = 0;
    memory_.reset(std::aligned_alloc(kAlignment, rounded));
    if (memory_) capacity_ = rounded;
    return memory_.get();
  }

  /// A second buffer, for what this thread lends to the others of its call.
  void* reserve_shared(size_t bytes) {
    if (!shared_) shared_ = std::make_unique<Scratch>();
    return shared_->reserve(bytes);
  }

  static Scratch& of_this_thread() {
    thread_local Scratch scratch;
    return scratch;
  }

 private:
  static constexpr size_t kAlignment = 4096;
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t capacity_ = 0;
  std::unique_ptr<Scratch> shared_;
};

}  // namespace cadre::cpu
