// Times calls on a stream with CUDA events.
#include "bench/cuda/timer.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "bench/cuda/kernels.h"
#include "bench/cuda/warm_up.h"

namespace cadre::bench {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;  // five times the L2 of an H200

using Clock = std::chrono::steady_clock;

}  // namespace

Timer::Timer() : flushed_(kFlushBytes), other_(kFlushBytes) {
  other_.fill_bytes(1);
  require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  require(cudaEventCreate(&start_), "cudaEventCreate");
  require(cudaEventCreate(&stop_), "cudaEventCreate");
}

Timer::~Timer() {
  static_cast<void>(cudaEventDestroy(start_));
  static_cast<void>(cudaEventDestroy(stop_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

// The flush runs for longer than a launch takes, so that the call is queued behind it and its time
// holds no wait for the host.
double Timer::seconds(const std::function<void()>& call) const {
  require(cudaEventRecord(start_, stream_), "cudaEventRecord");
  call();
  require(cudaEventRecord(stop_, stream_), "cudaEventRecord");
  require(cudaEventSynchronize(stop_), "the timed call");
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, start_, stop_), "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

std::vector<Times> Timer::in_turn(const std::vector<std::function<void()>>& calls, int repeats,
                                  Flush flush) const {
  std::vector<double> latest(calls.size());
  std::vector<size_t> order(calls.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::mt19937 engine(1);
  int round = 0;
  const auto run_round = [&] {
    std::shuffle(order.begin(), order.end(), engine);
    for (const size_t i : order) {
      require(cudaMemsetAsync(flushed_.get(), round, kFlushBytes, stream_), "the flush");
      if (flush == Flush::kRead) read_bytes(other_.get(), kFlushBytes, stream_);
      latest[i] = seconds(calls[i]);
    }
    ++round;
  };

  const Clock::time_point begin = Clock::now();
  std::vector<double> sums;
  do {
    run_round();
    sums.push_back(std::accumulate(latest.begin(), latest.end(), 0.0));
  } while (!warmed_up(sums, std::chrono::duration<double>(Clock::now() - begin).count()));

  std::vector<std::vector<double>> taken(calls.size());
  for (int repeat = 0; repeat < repeats; ++repeat) {
    run_round();
    for (size_t i = 0; i < calls.size(); ++i) taken[i].push_back(latest[i]);
  }
  std::vector<Times> times;
  for (const std::vector<double>& values : taken) times.push_back(times_of(values));
  return times;
}

double Timer::copy_rate() const {
  constexpr size_t kBytes = size_t{2} << 30;
  const DeviceBuffer from(kBytes);
  const DeviceBuffer to(kBytes);
  const auto copy = [&] {
    require(cudaMemcpyAsync(to.get(), from.get(), kBytes, cudaMemcpyDeviceToDevice, stream_),
            "the copy");
  };
  return 2.0 * static_cast<double>(kBytes) / in_turn({copy}, 5, Flush::kRead)[0].median_s;
}

}  // namespace cadre::bench
