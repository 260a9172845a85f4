// Shares the rows of a call out to threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

#include "cpu/threads.h"

namespace cadre::cpu {

/// Elements that are worth another thread.
inline constexpr double kMinElementsOfThread = 16384;

/// Shares rows out to threads. A thread that finds no memory for its few words of scratch leaves
/// its rows unwritten, and the call fails.
class RowThreads {
 public:
  explicit RowThreads(int threads) : threads_(threads) {}

  /// Calls body(i) for i in [0, count), `width` elements of work each.
  template <typename Body>
  void each(int64_t count, int64_t width, const Body& body) {
    const double elements =
        static_cast<double>(count) * static_cast<double>(std::max<int64_t>(width, 1));
    const int used =
        static_cast<int>(std::min<double>(threads_, elements / kMinElementsOfThread + 1));
    for_each_index(used, count, [&](int64_t i) {
      try {
        body(i);
      } catch (const std::bad_alloc&) {
        out_of_memory_.store(true, std::memory_order_relaxed);
      }
    });
  }

  bool out_of_memory() const { return out_of_memory_.load(std::memory_order_relaxed); }

 private:
  int threads_;
  std::atomic<bool> out_of_memory_{false};
};

}  // namespace cadre::cpu
