// Warm-up, shuffled rounds, and the median of ratios.
#include "bench/cpu/rounds.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>

namespace cadre::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kDefaultRepeats = 200;
constexpr double kDefaultSeconds = 1.2;
/// A round has settled when no call was faster than this share of its best time before; two such
/// rounds in a row end the warm-up, and so does its time.
constexpr double kSettled = 0.97;
constexpr int kSettledRounds = 2;
constexpr double kWarmUpSeconds = 1.0;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double time_of(const std::function<void()>& call) {
  const Clock::time_point start = Clock::now();
  call();
  return seconds_since(start);
}

void warm_up(const std::vector<std::function<void()>>& calls) {
  const Clock::time_point begin = Clock::now();
  std::vector<double> best(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) best[i] = time_of(calls[i]);
  for (int settled = 0; settled < kSettledRounds && seconds_since(begin) < kWarmUpSeconds;) {
    bool faster = false;
    for (size_t i = 0; i < calls.size(); ++i) {
      const double time = time_of(calls[i]);
      faster = faster || time < kSettled * best[i];
      best[i] = std::min(best[i], time);
    }
    settled = faster ? 0 : settled + 1;
  }
}

}  // namespace

std::vector<std::vector<double>> time_in_rounds(const std::vector<std::function<void()>>& calls,
                                                const RoundOptions& options) {
  const auto repeats = static_cast<size_t>(options.repeats > 0 ? options.repeats : kDefaultRepeats);
  const auto fewest = static_cast<size_t>(kFewestRounds);
  const double seconds = options.seconds > 0 ? options.seconds : kDefaultSeconds;
  std::vector<std::vector<double>> times(calls.size());
  std::vector<size_t> order(calls.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::minstd_rand random(1);
  warm_up(calls);
  const Clock::time_point begin = Clock::now();
  while (times[0].size() < repeats &&
         (times[0].size() < fewest || seconds_since(begin) < seconds)) {
    std::shuffle(order.begin(), order.end(), random);
    for (const size_t i : order) {
      const Clock::time_point start = Clock::now();
      times[i].push_back(time_of(calls[i]));
      if (options.told) options.told(i, start, times[i].back());
    }
  }
  return times;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Interval ratio_of_rounds(const std::vector<double>& other, const std::vector<double>& ours) {
  std::vector<double> ratios(ours.size());
  for (size_t i = 0; i < ratios.size(); ++i) ratios[i] = other[i] / ours[i];
  std::sort(ratios.begin(), ratios.end());
  // How many of n rounds lie below the true median is binomial, with deviation sqrt(n) / 2.
  const auto count = static_cast<double>(ratios.size());
  const double low = std::floor((count - 1.96 * std::sqrt(count)) / 2);
  const auto last = static_cast<double>(ratios.size() - 1);
  const auto at = [&](double index) {
    return ratios[static_cast<size_t>(std::clamp(index, 0.0, last))];
  };
  return {ratios[ratios.size() / 2], at(low - 1), at(count - low)};
}

}  // namespace cadre::bench
