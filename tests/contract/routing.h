// A router's choice, and what route must make of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "verify/random.h"

namespace cadre::contract {

/// A router's choice: ids[t][j], and what route must make of it.
struct Routing {
  int64_t tokens = 0;
  int64_t top_k = 0;
  int64_t num_experts = 0;
  std::vector<int64_t> ids{};
  std::vector<int64_t> sizes{}, source_row{}, slot_row{};

  int64_t slots() const { return tokens * top_k; }

  /// Sorts the slots that have an expert.
  void solve() {
    std::vector<int64_t> order;
    for (int64_t slot = 0; slot < slots(); ++slot) {
      const int64_t id = ids[static_cast<size_t>(slot)];
      if (id >= 0 && id < num_experts) order.push_back(slot);
    }
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
      return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
    });
    sizes.assign(static_cast<size_t>(num_experts), 0);
    source_row.assign(static_cast<size_t>(slots()), -1);
    slot_row.assign(static_cast<size_t>(slots()), -1);
    for (size_t row = 0; row < order.size(); ++row) {
      const auto slot = static_cast<size_t>(order[row]);
      ++sizes[static_cast<size_t>(ids[slot])];
      source_row[row] = order[row] / top_k;
      slot_row[slot] = static_cast<int64_t>(row);
    }
  }
};

/// `dropped`: the share of ids that are no expert.
inline Routing random_routing(verify::Random& random, int64_t tokens, int64_t top_k,
                              int64_t num_experts, double dropped = 0) {
  Routing routing{.tokens = tokens, .top_k = top_k, .num_experts = num_experts};
  for (int64_t slot = 0; slot < routing.slots(); ++slot) {
    const bool drop = num_experts == 0 || random.chance(dropped);
    const int64_t beyond = random.pick<int64_t>({-1, num_experts, -7, num_experts + 100, 120});
    const int64_t good = num_experts == 0 ? 0 : random.between(0, num_experts - 1);
    routing.ids.push_back(drop ? beyond : good);
  }
  routing.solve();
  return routing;
}

inline Routing with_ids(int64_t tokens, int64_t top_k, int64_t num_experts, int64_t id) {
  Routing routing{.tokens = tokens, .top_k = top_k, .num_experts = num_experts};
  routing.ids.assign(static_cast<size_t>(routing.slots()), id);
  routing.solve();
  return routing;
}

}  // namespace cadre::contract
