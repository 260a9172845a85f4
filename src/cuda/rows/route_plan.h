// How route cuts its slots into chunks, one for each warp, and the scratch it counts in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace cadre::rows {

/// A warp counts and places `slots_of_chunk` slots, 32 at a time. Counters are [expert][chunk], so
/// that their running sum in memory order is each chunk's first row in each expert.
struct RoutePlan {
  int64_t slots;
  int64_t num_experts;
  int64_t slots_of_chunk;
  int64_t chunks;
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
    // Few chunks keep the running sum short; short chunks keep every warp's walk short. 256 slots
    // are eight steps of a warp; from 2^17 slots on chunks grow instead of their number.
    constexpr int64_t kLeastSlots = 256;
    constexpr int64_t kMostChunks = 512;
    const int64_t even = (slots + kMostChunks - 1) / kMostChunks;
    return cut(slots, num_experts, std::max(kLeastSlots, (even + 31) / 32 * 32), false);
  }

  CADRE_HOST_DEVICE int64_t counters() const { return num_experts * chunks; }

 private:
  static RoutePlan cut(int64_t slots, int64_t num_experts, int64_t size, bool one_block) {
    return {slots, num_experts, size, (slots + size - 1) / size, one_block};
  }
};

}  // namespace cadre::rows
