// A block of columns of one unit that several threads work on: its owner, which is late, and
// threads that have nothing left to do. Each takes some of its row tiles at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cpu/threads.h"

namespace cadre::cpu {

/// Threads of one call that have nothing left to do, and what they wait for.
struct IdleThreads {
  std::atomic<int> count{0};
  std::atomic<uint32_t> news{0};  ///< changes when a block opens and when no unit is left

  void tell() {
    news.fetch_add(1, std::memory_order_acq_rel);
    news.notify_all();
  }
};

class SharedBlock {
 public:
  /// What a thread needs to work on the block; all of it belongs to the owner.
  struct Work {
    int64_t column_block = 0;       ///< of the unit
    int64_t first_k_block = 0;      ///< those before are in the accumulators
    int64_t tiles_ahead = 0;        ///< of the first row tiles, this one too
    int64_t tiles = 0;              ///< row tiles
    const char* a = nullptr;        ///< all rows, packed
    const char* first_b = nullptr;  ///< of first_k_block, packed
    const char* b = nullptr;        ///< of those behind it
    char* acc = nullptr;            ///< where there are several blocks of k
    const void* bias = nullptr;
  };
  /// Row tiles [begin, end); none where they are equal.
  struct Tiles {
    int64_t begin, end;
  };

  explicit SharedBlock(IdleThreads& idle) : idle_(idle) {}

  /// Somebody would take a part.
  bool is_wanted() const { return idle_.count.load(std::memory_order_relaxed) > 0; }

  /// By the owner, once no block is open.
  void open(const Work& work) {
    work_ = work;
    done_.store(0, std::memory_order_relaxed);
    left_.store(work.tiles, std::memory_order_release);
    idle_.tell();
  }

  /// Some tiles are there to be taken.
  bool is_open() const { return left_.load(std::memory_order_relaxed) > 0; }

  Tiles take() {
    if (!is_open()) return {0, 0};
    const int64_t left = left_.fetch_sub(kAtATime, std::memory_order_acq_rel);
    if (left <= 0) return {0, 0};
    // Until these tiles are finished, work_ stays as it is.
    return {work_.tiles - left, work_.tiles - std::max<int64_t>(left - kAtATime, 0)};
  }

  /// Of the block that the calling thread holds tiles of.
  const Work& work() const { return work_; }

  void finish(const Tiles& tiles) {
    const auto count = static_cast<uint32_t>(tiles.end - tiles.begin);
    const auto all = static_cast<uint32_t>(work_.tiles);  // before the owner may change it
    if (done_.fetch_add(count, std::memory_order_acq_rel) + count == all) done_.notify_all();
  }

  /// By the owner: until all tiles are finished.
  void close() {
    for (;;) {
      const uint32_t done = done_.load(std::memory_order_acquire);
      if (done == static_cast<uint32_t>(work_.tiles)) return;
      wait_for_change(done_, done);
    }
  }

 private:
  /// Few, because their time is what threads wait for each other in the end.
  static constexpr int64_t kAtATime = 4;

  IdleThreads& idle_;
  Work work_{};
  std::atomic<int64_t> left_{0};
  std::atomic<uint32_t> done_{0};  ///< tiles, of which a unit has far fewer than 2^32
};

}  // namespace cadre::cpu
