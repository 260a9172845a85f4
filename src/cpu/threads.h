// The CPU backend's threads. A call is worked off by the thread that makes it; idle threads of one
// pool join in as they find time. Nobody waits for a thread that has not come.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace cadre::cpu {

/// OMP_NUM_THREADS, else the CPUs that this process may run on.
int default_thread_count();

/// `wanted`, but 1 in a process that was forked from one whose pool had started: the pool's threads
/// don't exist there.
int usable_threads(int wanted);

/// Runs `body` on the calling thread and on at most `threads` - 1 others at the same time, and
/// returns when all that have begun it are done. How many join is not certain, and may be none: the
/// body takes its work from counters and returns once nothing is left. It must not throw.
void run_on_threads(int threads, void (*run)(const void*), const void* body);

template <class Body>
void run_on_threads(int threads, const Body& body) {
  run_on_threads(
      threads, [](const void* of) { (*static_cast<const Body*>(of))(); }, &body);
}

/// Calls `visit(i)` once for each i from 0 to `count` - 1, on several threads.
template <class Visit>
void for_each_index(int threads, int64_t count, const Visit& visit) {
  const int64_t at_a_time = std::max<int64_t>(count / (int64_t{threads} * 16), 1);
  std::atomic<int64_t> next{0};
  run_on_threads(threads, [&] {
    for (;;) {
      const int64_t begin = next.fetch_add(at_a_time, std::memory_order_relaxed);
      for (int64_t i = begin; i < std::min(begin + at_a_time, count); ++i) visit(i);
      if (begin + at_a_time >= count) return;
    }
  });
}

/// What a thread does before it sleeps: `quiet` keeps the core, and then, until `yielding` is over,
/// it gives the core to anyone who wants it. Waking a sleeping thread takes tens of microseconds.
struct Patience {
  std::chrono::microseconds quiet, yielding;
};
/// Within a call the others are done soon, and a core given away to another program is lost for
/// milliseconds.
inline constexpr Patience kWithinCall{std::chrono::microseconds(50),
                                      std::chrono::microseconds(500)};

/// Returns when `value` is not `old` any more. Whoever ends a wait calls value.notify_all().
void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old,
                     Patience patience = kWithinCall);

}  // namespace cadre::cpu
