// What a measurement on a GPU gives. Nothing here needs one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/cuda/conditions.h"

namespace cadre::bench {

struct Times {
  double median_s = 0;
  double least_s = 0;
  double greatest_s = 0;
};

/// Of at least one value.
inline Times times_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

/// How a result compares with the product in double.
struct Checked {
  int64_t elements = 0;
  int64_t not_finite = 0;  ///< of the whole output, which was poisoned before
  double max_error = 0;    ///< of the element that is worst by its tolerance
  double ratio = 0;        ///< its error over its tolerance
  std::string where{};     ///< "group 3, element 4711"
  uint64_t bits = 0;       ///< a hash of the sampled elements: equal where they are

  bool passed() const { return elements > 0 && not_finite == 0 && ratio <= 1; }
};

/// A case's times in one condition, and what they are compared with in the same one.
struct Timing {
  Condition condition = Condition::kMixed;
  int calls = 0;  ///< that were timed
  Times times{};
  std::optional<Times> dense{};           ///< the dense product of the same m, k, n and dtype
  std::optional<Times> baseline{};        ///< the case that this one is compared with
  std::optional<Times> baseline_dense{};  ///< its dense product, where it is of another dtype
};

/// One Case.
struct Measurement {
  std::string kernel{};  ///< the one that was chosen
  Checked check{};
  double used_groups = 0;         ///< that have rows
  std::vector<Timing> timings{};  ///< sustained, rested, mixed: those that were asked for
};

/// Host time of one call through the C API.
struct HostCost {
  std::string op{};
  Times times{};
};

}  // namespace cadre::bench
