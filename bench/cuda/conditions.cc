// The conditions in which a call is timed on a GPU.
#include "bench/cuda/conditions.h"

#include <algorithm>
#include <cmath>

#include "core/text.h"

namespace cadre::bench {
namespace {

constexpr double kShortestCallSeconds = 1e-6;

int calls_in(double seconds, double call_s) {
  return std::max(1, static_cast<int>(std::ceil(seconds / std::max(call_s, kShortestCallSeconds))));
}

}  // namespace

std::string_view name_of(Condition condition) {
  switch (condition) {
    case Condition::kSustained:
      return "sustained";
    case Condition::kRested:
      return "rested";
    default:
      return "mixed";
  }
}

Status find_conditions(const std::vector<std::string>& names, std::vector<Condition>* found) {
  found->clear();
  std::string known;
  for (const Condition condition : kConditions) {
    known += text(known.empty() ? "" : ", ", name_of(condition));
    if (names.empty() || std::find(names.begin(), names.end(), name_of(condition)) != names.end()) {
      found->push_back(condition);
    }
  }
  for (const std::string& name : names) {
    const auto same = [&name](Condition condition) { return name_of(condition) == name; };
    if (std::none_of(std::begin(kConditions), std::end(kConditions), same)) {
      return Status::invalid(text("--condition = ", name, ", expected one of ", known));
    }
  }
  return {};
}

bool contains(const std::vector<Condition>& conditions, Condition condition) {
  return std::find(conditions.begin(), conditions.end(), condition) != conditions.end();
}

SustainedPlan plan_sustained(double call_s) {
  return {.lead_calls = calls_in(kSustainedLeadSeconds, call_s),
          .calls_of_batch = calls_in(kSustainedBatchSeconds, call_s)};
}

}  // namespace cadre::bench
