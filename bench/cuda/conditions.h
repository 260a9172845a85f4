// The conditions in which `cadre bench --device cuda` times a call. An H200 is limited by its
// power, so a kernel's time depends on what ran before it. Nothing here needs a GPU.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cadre/status.h"

namespace cadre::bench {

enum class Condition {
  kSustained,  ///< a loop of its own, after 0.3 s of it, no flush: what training sees
  kRested,     ///< the first calls after a second of rest, L2 flushed: the kernel at full clock
  kMixed,      ///< in turn with others, in shuffled order, L2 flushed
};

/// In the order of reports.
inline constexpr Condition kConditions[] = {Condition::kSustained, Condition::kRested,
                                            Condition::kMixed};

std::string_view name_of(Condition condition);
/// kInvalid, with what there is, for a name that doesn't exist. No name at all: every condition.
Status find_conditions(const std::vector<std::string>& names, std::vector<Condition>* found);
bool contains(const std::vector<Condition>& conditions, Condition condition);

inline constexpr double kRestSeconds = 1.0;
inline constexpr int kRestedCalls = 10;

/// How many calls a sustained loop takes: some that don't count, then batches, each timed as one,
/// so that no event stands between a call and the next one.
struct SustainedPlan {
  int lead_calls = 1;
  int calls_of_batch = 1;
};
inline constexpr double kSustainedLeadSeconds = 0.3;
inline constexpr double kSustainedBatchSeconds = 0.01;
inline constexpr int kSustainedBatches = 11;

/// For calls of `call_s` each, as they are before the loop. The card slows down in it if at all, so
/// the lead lasts no less than it should.
SustainedPlan plan_sustained(double call_s);

}  // namespace cadre::bench
