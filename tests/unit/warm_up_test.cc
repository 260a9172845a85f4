// The warm-up of the GPU benchmark lasts until times have settled, and no longer than it may.
#include "bench/cuda/warm_up.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace cadre::bench {
namespace {

constexpr double kLongEnough = (kLeastWarmUpSeconds + kMostWarmUpSeconds) / 2;

TEST(WarmUp, LastsForItsLeastTime) {
  const std::vector<double> steady(200, 1e-3);
  EXPECT_FALSE(warmed_up(steady, 0.99 * kLeastWarmUpSeconds));
  EXPECT_TRUE(warmed_up(steady, kLeastWarmUpSeconds));
}

TEST(WarmUp, HasItsFewestRoundsHoweverLongTheyTake) {
  const std::vector<double> few(kFewestWarmUpRounds - 1, 1.0);
  EXPECT_FALSE(warmed_up(few, 10 * kMostWarmUpSeconds));
  EXPECT_FALSE(warmed_up({}, 10 * kMostWarmUpSeconds));
  EXPECT_TRUE(warmed_up(std::vector<double>(kFewestWarmUpRounds, 1.0), 10 * kMostWarmUpSeconds));
}

TEST(WarmUp, WaitsForTimesThatStillFall) {
  std::vector<double> falling;
  for (int i = 0; i < 150; ++i) falling.push_back(1e-3 * std::exp(-i / 1000.0));  // 5 % a third
  EXPECT_FALSE(warmed_up(falling, kLongEnough));
  EXPECT_TRUE(warmed_up(falling, kMostWarmUpSeconds));
}

TEST(WarmUp, EndsOnceAFallIsOver) {
  std::vector<double> times(60, 1.1e-3);  // a tenth slower at first
  times.insert(times.end(), 60, 1e-3);
  EXPECT_FALSE(warmed_up(times, kLongEnough));  // the middle third is still half slow
  times.insert(times.end(), 60, 1e-3);
  EXPECT_TRUE(warmed_up(times, kLongEnough));
}

TEST(WarmUp, TakesNoOutlierForAFall) {
  std::vector<double> times(90, 1e-3);
  times[31] = times[40] = times[59] = 9e-3;
  EXPECT_TRUE(warmed_up(times, kLongEnough));
}

TEST(WarmUp, DoesNotWaitForTimesThatRise) {
  std::vector<double> times;
  for (int i = 0; i < 90; ++i) times.push_back(1e-3 + 1e-5 * i);
  EXPECT_TRUE(warmed_up(times, kLongEnough));
}

}  // namespace
}  // namespace cadre::bench
