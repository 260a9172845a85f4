// Memory for packed panels and accumulators: one growing buffer for each thread, kept between
// calls.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace cadre::cpu {

class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// At least `bytes`, aligned to a page; null when there is no memory. Contents are not kept.
  void* reserve(size_t bytes);

  /// A second buffer, for what this thread lends to the others of its call.
  void* reserve_shared(size_t bytes) {
    if (!shared_) shared_.reset(new (std::nothrow) Scratch);
    return shared_ ? shared_->reserve(bytes) : nullptr;
  }

  /// Null when there is no memory.
  static Scratch* of_this_thread();

 private:
  void release();

  void* memory_ = nullptr;
  size_t capacity_ = 0;
  bool mapped_ = false;  ///< by the system directly, not from the heap
  std::unique_ptr<Scratch> shared_;
};

}  // namespace cadre::cpu
