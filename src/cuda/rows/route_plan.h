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

  /// Few chunks keep the running sum short; short chunks keep every warp's walk short. 256 slots
  /// are eight steps of a warp; from 2^17 slots on chunks grow instead of their number.
  static RoutePlan of(int64_t slots, int64_t num_experts) {
    constexpr int64_t kLeastSlots = 256;
    constexpr int64_t kMostChunks = 512;
    const int64_t even = (slots + kMostChunks - 1) / kMostChunks;
    const int64_t size = std::max(kLeastSlots, (even + 31) / 32 * 32);
    return {slots, num_experts, size, (slots + size - 1) / size};
  }

  CADRE_HOST_DEVICE int64_t counters() const { return num_experts * chunks; }
};

}  // namespace cadre::rows
