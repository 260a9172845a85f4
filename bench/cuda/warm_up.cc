// The rule by which a warm-up ends.
#include "bench/cuda/warm_up.h"

#include <cstddef>

#include "bench/cuda/measurement.h"

namespace cadre::bench {
namespace {

constexpr double kStillFalling = 0.99;

/// Of round_s[first] to round_s[end - 1].
double median_of(const std::vector<double>& round_s, size_t first, size_t end) {
  const auto begin = round_s.begin();
  return times_of({begin + static_cast<ptrdiff_t>(first), begin + static_cast<ptrdiff_t>(end)})
      .median_s;
}

}  // namespace

bool warmed_up(const std::vector<double>& round_s, double elapsed_s) {
  const size_t rounds = round_s.size();
  if (rounds < kFewestWarmUpRounds || elapsed_s < kLeastWarmUpSeconds) return false;
  if (elapsed_s >= kMostWarmUpSeconds) return true;
  const size_t third = rounds / 3;
  return median_of(round_s, rounds - third, rounds) >=
         kStillFalling * median_of(round_s, rounds - 2 * third, rounds - third);
}

}  // namespace cadre::bench
