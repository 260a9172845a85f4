// When the warm-up of calls that are timed in turn may end. Nothing here needs a GPU.
#pragma once

#include <cstddef>
#include <vector>

namespace cadre::bench {

/// The card's clocks follow its power with a delay: right after products that drew all of it, a
/// call that is bound by memory was 10 % slower for 20 ms at least. So a group runs its own calls
/// for a while before any of them counts.
inline constexpr double kLeastWarmUpSeconds = 0.15;
/// Times that still fall then are waited for, up to here.
inline constexpr double kMostWarmUpSeconds = 0.4;
/// However long they take.
inline constexpr size_t kFewestWarmUpRounds = 3;

/// True when the rounds, each given by the sum of its calls' times, have lasted `elapsed_s` in all
/// and need no further one: the median of their last third is no more than 1 % below that of the
/// third before it, or their time is up.
bool warmed_up(const std::vector<double>& round_s, double elapsed_s);

}  // namespace cadre::bench
