// A block of columns of one unit that several threads work on: its owner, which is late, and
// threads that have nothing left to do. Each takes some of its row tiles at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

namespace cadre::cpu {

/// Threads of one call that have nothing left to do.
using IdleThreads = std::atomic<int>;

/// Leaves the core's other thread its instructions, then the core to a thread that has none.
inline void wait_a_little() {
#if defined(__x86_64__)
  for (int i = 0; i < 64; ++i) __builtin_ia32_pause();
#endif
  std::this_thread::yield();
}

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

  explicit SharedBlock(const IdleThreads& idle) : idle_(idle) {}

  /// Somebody would take a part.
  bool is_wanted() const { return idle_.load(std::memory_order_relaxed) > 0; }

  /// By the owner, once no block is open.
  void open(const Work& work) {
    work_ = work;
    done_.store(0, std::memory_order_relaxed);
    left_.store(work.tiles, std::memory_order_release);
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
    done_.fetch_add(tiles.end - tiles.begin, std::memory_order_release);
  }

  /// By the owner: until all tiles are finished.
  void close() {
    while (done_.load(std::memory_order_acquire) < work_.tiles) wait_a_little();
  }

 private:
  /// Few, because their time is what threads wait for each other in the end.
  static constexpr int64_t kAtATime = 4;

  const IdleThreads& idle_;
  Work work_{};
  std::atomic<int64_t> left_{0}, done_{0};
};

}  // namespace cadre::cpu
