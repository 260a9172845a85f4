// Times calls on a stream with CUDA events.
#include "bench/cuda/timer.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "bench/cuda/conditions.h"
#include "bench/cuda/kernels.h"
#include "bench/cuda/warm_up.h"

namespace cadre::bench {
namespace {

constexpr size_t kFlushBytes = size_t{256} << 20;  // five times the L2 of an H200

using Clock = std::chrono::steady_clock;

/// Events of one stream. They are made before the first is recorded, so that nothing but the record
/// stands between two calls.
class Marks {
 public:
  Marks(cudaStream_t stream, int count) : stream_(stream), events_(static_cast<size_t>(count)) {
    for (cudaEvent_t& event : events_) require(cudaEventCreate(&event), "cudaEventCreate");
  }
  ~Marks() {
    for (const cudaEvent_t event : events_) static_cast<void>(cudaEventDestroy(event));
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;

  void record_next() {
    require(cudaEventRecord(events_.at(recorded_++), stream_), "cudaEventRecord");
  }

  /// Seconds between each mark and the next one, once the stream has passed all of them.
  std::vector<double> intervals() const {
    require(cudaEventSynchronize(events_.back()), "the timed calls");
    std::vector<double> seconds;
    for (size_t i = 1; i < events_.size(); ++i) {
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, events_[i - 1], events_[i]),
              "cudaEventElapsedTime");
      seconds.push_back(static_cast<double>(milliseconds) * 1e-3);
    }
    return seconds;
  }

 private:
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  size_t recorded_ = 0;
};

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

void Timer::empty_l2(Flush flush, int value) const {
  require(cudaMemsetAsync(flushed_.get(), value, kFlushBytes, stream_), "the flush");
  if (flush == Flush::kRead) read_bytes(other_.get(), kFlushBytes, stream_);
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
      empty_l2(flush, round);
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

Times Timer::rested(const std::function<void()>& call, Flush flush) const {
  require(cudaStreamSynchronize(stream_), "what ran before the rest");
  std::this_thread::sleep_for(std::chrono::duration<double>(kRestSeconds));
  std::vector<double> taken;
  for (int i = 0; i < kRestedCalls; ++i) {
    empty_l2(flush, i);
    taken.push_back(seconds(call));
  }
  return times_of(taken);
}

// Nothing waits for the host here: calls are queued ahead while the lead runs, and a queue that is
// full holds the host back, not the GPU.
Times Timer::sustained(const std::function<void()>& call, int* calls) const {
  constexpr int kTrials = 4;  // in a row: a single one would be timed with its launch
  Marks trial(stream_, 2);
  trial.record_next();
  for (int i = 0; i < kTrials; ++i) call();
  trial.record_next();
  const SustainedPlan plan = plan_sustained(trial.intervals().front() / kTrials);
  Marks marks(stream_, kSustainedBatches + 1);
  for (int i = 0; i < plan.lead_calls; ++i) call();
  marks.record_next();
  for (int batch = 0; batch < kSustainedBatches; ++batch) {
    for (int i = 0; i < plan.calls_of_batch; ++i) call();
    marks.record_next();
  }
  std::vector<double> taken = marks.intervals();
  for (double& batch_s : taken) batch_s /= plan.calls_of_batch;
  *calls = kSustainedBatches * plan.calls_of_batch;
  return times_of(taken);
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
