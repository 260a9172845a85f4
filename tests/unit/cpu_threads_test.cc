// The pool: work is done once whoever comes, a call never waits for a thread that has not come, and
// threads without work sleep.
#include "cpu/threads.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "tests/support/scoped_environment.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace cadre::cpu {
namespace {

using std::chrono::steady_clock;
using tests::ScopedEnvironment;

bool within_a_minute(const std::function<bool()>& reached) {
  const auto begin = steady_clock::now();
  while (!reached()) {
    if (steady_clock::now() - begin > std::chrono::minutes(1)) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(CpuThreads, EveryIndexIsVisitedOnceOnSeveralThreads) {
  std::atomic<bool> joined{false};
  const auto caller = std::this_thread::get_id();
  EXPECT_TRUE(within_a_minute([&] {
    std::vector<std::atomic<int>> visits(1013);
    for_each_index(3, 1013, [&](int64_t i) {
      ++visits[static_cast<size_t>(i)];
      if (std::this_thread::get_id() != caller) joined = true;
    });
    for (const auto& count : visits) EXPECT_EQ(count, 1);
    return joined.load();
  })) << "nobody joined in a minute";
  for_each_index(3, 0, [](int64_t) { ADD_FAILURE() << "there is nothing to visit"; });
}

/// A thread that the system does not run, or that another call has, is not missed.
TEST(CpuThreads, CallFinishesWithoutThreadsThatDoNotCome) {
  std::atomic<bool> over{false};
  std::atomic<int> held{0};
  // Calls that hold as many threads as the pool has, for as long as the call below takes.
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&] {
      run_on_threads(2, [&] {
        ++held;
        over.wait(false);
      });
    });
  }
  ASSERT_TRUE(within_a_minute([&] { return held >= 3; }));
  int64_t sum = 0;
  run_on_threads(2, [&, caller = std::this_thread::get_id()] {
    if (std::this_thread::get_id() == caller) sum = 1;
  });
  EXPECT_EQ(sum, 1);
  over = true;
  over.notify_all();
  for (std::thread& other : others) other.join();
}

/// More than there are slots for.
TEST(CpuThreads, ManyCallsAtOnce) {
  constexpr int kCallers = 40, kCalls = 200;
  std::atomic<int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) {
    callers.emplace_back([&] {
      for (int call = 0; call < kCalls; ++call) {
        int64_t expected = 0;
        std::atomic<int64_t> own{0};
        for_each_index(4, 37, [&](int64_t index) { own += index; });
        for (int64_t index = 0; index < 37; ++index) expected += index;
        if (own == expected) ++sum;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(sum, kCallers * kCalls);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// What a spinning thread would use is the whole time.
TEST(CpuThreads, ThreadsWithoutACallSleep) {
  for_each_index(4, 1000, [](int64_t) {});
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_seconds() - before, 0.1);
}

/// So does a thread that waits for another within a call.
TEST(CpuThreads, WaitingThreadsSleep) {
  std::atomic<uint32_t> value{7};
  std::atomic<bool> done{false};
  const double before = cpu_seconds();
  std::thread waiter([&] {
    wait_for_change(value, 7);
    done = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LT(cpu_seconds() - before, 0.1);
  EXPECT_FALSE(done);
  value = 8;
  value.notify_all();
  waiter.join();
  wait_for_change(value, 7);  // returns at once
}

#if defined(__x86_64__)
/// Otherwise bits would depend on which thread computes them.
TEST(CpuThreads, FloatSettingsOfTheCallerHoldOnEveryThread) {
  const unsigned before = _mm_getcsr();
  const auto caller = std::this_thread::get_id();
  for (const unsigned settings : {before | 0x8040u, before & ~0x8040u}) {  // denormals are zero
    _mm_setcsr(settings);
    std::atomic<bool> joined{false};
    std::atomic<int> others{0};
    EXPECT_TRUE(within_a_minute([&] {
      for_each_index(3, 100, [&](int64_t) {
        if ((_mm_getcsr() & 0x8040u) != (settings & 0x8040u)) ++others;
        if (std::this_thread::get_id() != caller) joined = true;
      });
      return joined.load();
    }));
    EXPECT_EQ(others, 0);
  }
  _mm_setcsr(before);
}
#endif

TEST(CpuThreads, ForkedProcessWorksOnOneThread) {
  for_each_index(3, 100, [](int64_t) {});
  EXPECT_EQ(usable_threads(3), 3);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);  // a hang ends it
    std::atomic<int64_t> sum{0};
    for_each_index(3, 100, [&](int64_t i) { sum += i; });
    _exit(sum == 4950 && usable_threads(3) == 1 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(usable_threads(3), 3);
}

TEST(CpuThreads, DefaultIsWhatTheProcessMayUse) {
  {
    const ScopedEnvironment omp("OMP_NUM_THREADS", "3");
    EXPECT_EQ(default_thread_count(), 3);
  }
  {
    const ScopedEnvironment omp("OMP_NUM_THREADS", "5,2");
    EXPECT_EQ(default_thread_count(), 5);
  }
  for (const char* none : {"", "0", "-2", "many", "99999999999"}) {
    const ScopedEnvironment omp("OMP_NUM_THREADS", none);
    cpu_set_t before, one;
    ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    EXPECT_EQ(default_thread_count(), CPU_COUNT(&before)) << none;
    int first = 0;
    while (!CPU_ISSET(first, &before)) ++first;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(default_thread_count(), 1);
    ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
  }
}

}  // namespace
}  // namespace cadre::cpu
