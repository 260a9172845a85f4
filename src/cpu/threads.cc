// The pool. Calls are posted in a few slots; a thread that has nothing to do takes a place in one.
#include "cpu/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "core/environment.h"

namespace cadre::cpu {
namespace {

/// Between calls: as long as waking a thread takes, so that calls in close succession find the pool
/// awake. The core is anybody's meanwhile.
constexpr Patience kBetweenCalls{std::chrono::microseconds(0), std::chrono::microseconds(100)};
/// Calls at one time that others may join; those beyond run on their own thread alone.
constexpr int kSlots = 16;
/// Calls to let pass before threads that the system refused are asked for again.
constexpr int kCallsBetweenTries = 1000;

/// The word of a slot: threads inside, places that are free, and whether a call has it.
constexpr uint32_t kInside = 1, kInsideMask = 0x1fff;
constexpr uint32_t kFree = 1 << 13, kFreeMask = 0x1fffu << 13;
constexpr uint32_t kTaken = 1u << 31;
static_assert(environment::kMaxThreads <= static_cast<int>(kInsideMask));

/// Rounding and flushing of denormals, which a caller may have changed, are those of its call on
/// every thread.
uint32_t float_settings() {
#if defined(__x86_64__)
  return __builtin_ia32_stmxcsr();
#else
  return 0;
#endif
}
void set_float_settings([[maybe_unused]] uint32_t settings) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(settings);
#endif
}

struct alignas(64) Slot {
  std::atomic<uint32_t> word{0};
  void (*run)(const void*) = nullptr;
  const void* body = nullptr;
  uint32_t float_settings = 0;

  bool claim() {
    uint32_t unused = 0;
    return word.load(std::memory_order_relaxed) == 0 &&
           word.compare_exchange_strong(unused, kTaken, std::memory_order_acquire);
  }
  void open(int places) {
    word.store(kTaken | static_cast<uint32_t>(places) * kFree, std::memory_order_release);
  }
  /// Takes a place, if one is free: then the slot stays what it is until leave().
  bool enter() {
    uint32_t seen = word.load(std::memory_order_relaxed);
    while ((seen & kFreeMask) != 0) {
      if (word.compare_exchange_weak(seen, seen - kFree + kInside, std::memory_order_acquire,
                                     std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }
  void leave() {
    const uint32_t seen = word.fetch_sub(kInside, std::memory_order_acq_rel) - kInside;
    // Slots are never freed, so it does no harm if another call has this one by now.
    if ((seen & (kInsideMask | kFreeMask)) == 0) word.notify_all();
  }
  /// Lets nobody in any more and waits for those inside.
  void close() {
    uint32_t seen = word.fetch_and(~kFreeMask, std::memory_order_acq_rel) & ~kFreeMask;
    while ((seen & kInsideMask) != 0) {
      wait_for_change(word, seen);
      seen = word.load(std::memory_order_acquire);
    }
    word.store(0, std::memory_order_release);
  }
};

/// CPUs that this process may run on.
int usable_cpus() {
#if defined(__linux__)
  cpu_set_t masks[8];  // one has room for 1024 CPUs
  if (sched_getaffinity(0, sizeof(masks), masks) == 0) {
    return std::max(CPU_COUNT_S(sizeof(masks), masks), 1);
  }
#endif
  return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1);
}

/// Has no destructor: threads may still look at it while the process ends.
class Pool {
 public:
  void call(int threads, void (*run)(const void*), const void* body) {
    Slot* const slot = threads > 1 && !is_forked() ? claim_slot() : nullptr;
    if (slot == nullptr) return run(body);
    const int places = threads - 1;
    slot->run = run;
    slot->body = body;
    slot->float_settings = float_settings();
    start_threads(places, places_.fetch_add(places, std::memory_order_relaxed) + places);
    slot->open(places);
    wake(places);
    run(body);
    slot->close();
    places_.fetch_sub(places, std::memory_order_relaxed);
  }

  bool is_forked() const { return forked_.load(std::memory_order_relaxed); }

 private:
  Slot* claim_slot() {
    for (Slot& slot : slots_) {
      if (slot.claim()) return &slot;
    }
    return nullptr;
  }

  /// Enough for this call alone and, as far as there are CPUs, for all that run now.
  void start_threads(int for_this, int for_all) {
    static const int cpus = usable_cpus();
    const int wanted = std::max(for_this, std::min(for_all, cpus - 1));
    if (started_.load(std::memory_order_relaxed) >= wanted) return;
    const std::unique_lock lock(starting_, std::try_to_lock);
    if (!lock.owns_lock() || (tries_to_skip_ > 0 && tries_to_skip_-- > 0)) return;
    // A pool that a forked process could not be told about would hang there.
    if (!registered_ && pthread_atfork(nullptr, nullptr, forget_threads) != 0) return;
    registered_ = true;
    sigset_t all, before;
    sigfillset(&all);  // signals are for the threads of the application
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started_.load(std::memory_order_relaxed) < wanted) {
      pthread_t thread;
      if (pthread_create(&thread, nullptr, work, this) != 0) {
        tries_to_skip_ = kCallsBetweenTries;  // fewer will do
        break;
      }
      pthread_detach(thread);
      started_.fetch_add(1, std::memory_order_relaxed);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void wake(int places) {
    calls_.fetch_add(1);
    const int needed = std::min(places - awake_.load(), asleep_.load());
    if (needed >= asleep_.load(std::memory_order_relaxed)) {
      if (needed > 0) calls_.notify_all();
      return;
    }
    for (int i = 0; i < needed; ++i) calls_.notify_one();
  }

  bool join_calls() {
    bool joined = false;
    for (Slot& slot : slots_) {
      if (!slot.enter()) continue;
      awake_.fetch_sub(1);
      set_float_settings(slot.float_settings);
      slot.run(slot.body);
      slot.leave();
      awake_.fetch_add(1);
      joined = true;
    }
    return joined;
  }

  static void* work(void* of) {
    Pool& pool = *static_cast<Pool*>(of);
    pool.awake_.fetch_add(1);
    for (;;) {
      const uint32_t seen = pool.calls_.load();
      if (pool.join_calls()) continue;
      pool.wait_for_call(seen);
    }
    return nullptr;
  }

  void wait_for_call(uint32_t seen);

  static void forget_threads();

  Slot slots_[kSlots];
  std::atomic<uint32_t> calls_{0};
  std::atomic<int> awake_{0}, asleep_{0};  ///< threads without a call
  std::atomic<int> places_{0};             ///< of all calls that run
  std::atomic<int> started_{0};
  std::atomic<bool> forked_{false};
  std::mutex starting_;
  bool registered_ = false;
  int tries_to_skip_ = 0;
};

constinit Pool the_pool;

void pause_a_little() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Returns whether `value` changed.
bool spin(const std::atomic<uint32_t>& value, uint32_t old, Patience patience) {
  using Clock = std::chrono::steady_clock;
  constexpr int kLooks = 32;
  const Clock::time_point begin = Clock::now();
  for (;;) {
    for (int i = 0; i < kLooks; ++i) {
      if (value.load(std::memory_order_acquire) != old) return true;
      pause_a_little();
    }
    const Clock::duration waited = Clock::now() - begin;
    if (waited >= patience.yielding) return false;
    if (waited >= patience.quiet) std::this_thread::yield();
  }
}

void Pool::wait_for_call(uint32_t seen) {
  if (spin(calls_, seen, kBetweenCalls)) return;
  asleep_.fetch_add(1);
  awake_.fetch_sub(1);
  // The next call has either seen that this thread sleeps, or changed the count before.
  calls_.wait(seen);
  awake_.fetch_add(1);
  asleep_.fetch_sub(1);
}

/// In the child of a fork only the calling thread exists. Whatever calls other threads had open are
/// theirs, in the parent.
void Pool::forget_threads() {
  for (Slot& slot : the_pool.slots_) slot.word.store(0, std::memory_order_relaxed);
  the_pool.forked_.store(true, std::memory_order_relaxed);
}

}  // namespace

int default_thread_count() {
  const int wanted = environment::omp_num_threads();
  return wanted > 0 ? wanted : usable_cpus();
}

int usable_threads(int wanted) { return the_pool.is_forked() ? 1 : wanted; }

void run_on_threads(int threads, void (*run)(const void*), const void* body) {
  the_pool.call(threads, run, body);
}

void wait_for_change(const std::atomic<uint32_t>& value, uint32_t old, Patience patience) {
  if (!spin(value, old, patience)) value.wait(old, std::memory_order_acquire);
}

}  // namespace cadre::cpu
