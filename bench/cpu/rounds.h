// Timing of calls that are compared: in rounds, each call once a round, in a new order every round.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

namespace cadre::bench {

/// Rounds that are timed however long they take. Of five, the median of each call and the median of
/// their ratios disagreed by a tenth on a machine that others use too.
inline constexpr int kFewestRounds = 15;

struct RoundOptions {
  int repeats = 0;     ///< rounds at most; 0: 200
  double seconds = 0;  ///< after this, no more rounds than the fewest; 0: 1.2
  /// Told of every timed call: its index, when it began, how long it took.
  std::function<void(size_t, std::chrono::steady_clock::time_point, double)> told{};
};

/// The times of each call, one for each round. Rounds before the times have settled do not count:
/// cores that have slept and pages that were never touched make the first calls slow.
std::vector<std::vector<double>> time_in_rounds(const std::vector<std::function<void()>>& calls,
                                                const RoundOptions& options);

double median(std::vector<double> values);

/// A median and where, with 95 % confidence, the median of all possible rounds lies (by order
/// statistics: nothing is assumed of the distribution).
struct Interval {
  double median, low, high;
};

/// Time of `other` over that of `ours` in the same round.
Interval ratio_of_rounds(const std::vector<double>& other, const std::vector<double>& ours);

}  // namespace cadre::bench
