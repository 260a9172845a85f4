// Threads that compute without a pause, and what the system gives them.
#include "bench/cpu/quiet.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

namespace cadre::bench {
namespace {

using Clock = std::chrono::steady_clock;

double thread_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double share_of_this_thread() {
  constexpr double kSeconds = 0.04;  // ten time slices of a usual scheduler
  const Clock::time_point start = Clock::now();
  const double before = thread_seconds();
  double wall = 0;
  while (wall < kSeconds) wall = std::chrono::duration<double>(Clock::now() - start).count();
  return (thread_seconds() - before) / wall;
}

}  // namespace

double cpu_share(int threads) {
  std::vector<double> shares(static_cast<size_t>(threads));
  std::vector<std::thread> others;
  for (size_t i = 1; i < shares.size(); ++i) {
    others.emplace_back([&shares, i] { shares[i] = share_of_this_thread(); });
  }
  shares[0] = share_of_this_thread();
  for (std::thread& other : others) other.join();
  return *std::min_element(shares.begin(), shares.end());
}

}  // namespace cadre::bench
