// How route shares out its slots among warps, and the scratch it counts in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace cadre::rows {

/// A warp counts and places `slots_of_warp` slots, 32 at a time. Counters are [expert][warp], so
/// that their running sum in memory order is each warp's first row in each expert.
struct RoutePlan {
  int64_t slots;
  int64_t num_experts;
  int64_t slots_of_warp;
  int64_t warps;
  bool one_block;  ///< all of it in one block, whose shared memory holds the counters

  static constexpr int64_t kWarpsOfBlock = 32;  ///< where one block does everything
  /// Words of static shared memory that a block can have, but for a few.
  static constexpr int64_t kMostSharedCounters = int64_t{11} * 1024;

  static RoutePlan of(int64_t slots, int64_t num_experts) {
    // A token or a few hundred: launches cost more than the work. Two steps of each warp.
    constexpr int64_t kSlotsOfBlock = kWarpsOfBlock * 64;
    if (slots <= kSlotsOfBlock) {
      const RoutePlan plan = cut(slots, num_experts, slots <= kSlotsOfBlock / 2 ? 32 : 64, true);
      if (plan.counters() <= kMostSharedCounters) return plan;
    }
    // Few warps keep the running sum short; few slots each keep every warp's walk short. 256 slots
    // are eight steps of a warp; from 2^17 slots on each warp takes more of them.
    constexpr int64_t kLeastSlots = 256;
    constexpr int64_t kMostWarps = 512;
    const int64_t even = (slots + kMostWarps - 1) / kMostWarps;
    return cut(slots, num_experts, std::max(kLeastSlots, (even + 31) / 32 * 32), false);
  }

  CADRE_HOST_DEVICE int64_t counters() const { return num_experts * warps; }

 private:
  static RoutePlan cut(int64_t slots, int64_t num_experts, int64_t size, bool one_block) {
    return {slots, num_experts, size, (slots + size - 1) / size, one_block};
  }
};

}  // namespace cadre::rows
