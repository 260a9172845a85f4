// The CPU benchmark's rounds: how many there are, and what is taken from them.
#include "bench/cpu/rounds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

namespace cadre::bench {
namespace {

std::vector<std::function<void()>> two_calls() {
  return {2, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }};
}

TEST(Rounds, AreTheFewestHoweverLongTheyTake) {
  const auto times = time_in_rounds(two_calls(), {.repeats = 0, .seconds = 1e-9});
  ASSERT_EQ(times.size(), 2u);
  for (const std::vector<double>& of_call : times) {
    EXPECT_EQ(of_call.size(), static_cast<size_t>(kFewestRounds));
    EXPECT_GE(*std::min_element(of_call.begin(), of_call.end()), 1e-3);
  }
}

TEST(Rounds, AreNoMoreThanAskedFor) {
  EXPECT_EQ(time_in_rounds(two_calls(), {.repeats = 2, .seconds = 1e-9})[1].size(), 2u);
  EXPECT_EQ(time_in_rounds(two_calls(), {.repeats = 40, .seconds = 60})[1].size(), 40u);
}

TEST(Rounds, LastForTheirTime) {
  const auto begin = std::chrono::steady_clock::now();
  const auto times = time_in_rounds(two_calls(), {.repeats = 100000, .seconds = 0.5});
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
  EXPECT_GT(times[0].size(), static_cast<size_t>(kFewestRounds));
}

/// Each round's ratio counts, so a change that slows both calls down does not.
TEST(Rounds, RatioIsThatOfPairs) {
  std::vector<double> ours(kFewestRounds), other(kFewestRounds);
  for (int i = 0; i < kFewestRounds; ++i) {
    ours[i] = i < kFewestRounds / 2 ? 1.0 : 3.0;
    other[i] = 1.25 * ours[i];
  }
  const Interval same = ratio_of_rounds(other, ours);
  EXPECT_DOUBLE_EQ(same.low, 1.25);
  EXPECT_DOUBLE_EQ(same.median, 1.25);
  EXPECT_DOUBLE_EQ(same.high, 1.25);
}

/// Of 15 rounds the 3rd and the 13th bound the median with at least 95 % (99.3 %, binomial).
TEST(Rounds, IntervalIsThatOfOrderStatistics) {
  const std::vector<double> ours(15, 1.0);
  std::vector<double> other(15);
  std::iota(other.rbegin(), other.rend(), 1.0);
  const Interval interval = ratio_of_rounds(other, ours);
  EXPECT_DOUBLE_EQ(interval.low, 3.0);
  EXPECT_DOUBLE_EQ(interval.median, 8.0);
  EXPECT_DOUBLE_EQ(interval.high, 13.0);
}

}  // namespace
}  // namespace cadre::bench
