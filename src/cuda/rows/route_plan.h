// How route shares out its slots among warps, and the memory it counts in.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/host_device.h"

namespace cadre::rows {

/// A warp counts and places `slots_of_warp` slots, 32 at a time.
struct RoutePlan {
  int64_t slots;
  int64_t num_experts;
  int64_t slots_of_warp;
  int64_t warps;
  /// One launch of so many blocks, which count in their shared memory; more than one are a cluster.
  /// 0: a launch for each step, with counters in memory.
  int64_t blocks;

  static constexpr int64_t kWarpsOfBlock = 32;  ///< of one launch
  /// What every GPU from sm_80 on gives a block.
  static constexpr int64_t kMostSharedBytes = int64_t{96} * 1024;
  static constexpr int64_t kClusterBlocks = 8;  ///< as many as every device with clusters has

  static RoutePlan of(int64_t slots, int64_t num_experts, bool has_clusters) {
    // A token or a few hundred: one block, one or two steps of each warp.
    constexpr int64_t kSlotsOfBlock = kWarpsOfBlock * 64;
    // 32 steps of each warp; with more of them all multiprocessors have something to do.
    constexpr int64_t kSlotsOfCluster = kClusterBlocks * kWarpsOfBlock * 1024;
    RoutePlan plan = cut(slots, num_experts, slots <= kSlotsOfBlock / 2 ? 32 : 64, 1);
    if (slots > kSlotsOfBlock) {
      plan = cut(slots, num_experts, share(slots, kClusterBlocks * kWarpsOfBlock), kClusterBlocks);
    }
    const bool one_launch = slots <= kSlotsOfBlock || (has_clusters && slots <= kSlotsOfCluster);
    if (one_launch && plan.shared_bytes() <= kMostSharedBytes) return plan;
    // Few warps keep the running sum short; few slots each keep every warp's walk short. 256 slots
    // are eight steps of a warp; from 2^17 slots on each warp takes more of them.
    constexpr int64_t kLeastSlots = 256;
    constexpr int64_t kMostWarps = 512;
    return cut(slots, num_experts, std::max(kLeastSlots, share(slots, kMostWarps)), 0);
  }

  /// One launch: warps of a block that have slots.
  CADRE_HOST_DEVICE int64_t warps_of_block() const {
    return warps < kWarpsOfBlock ? warps : kWarpsOfBlock;
  }
  /// And what the block counts in: the counters of each warp, their sums, and some words for the
  /// running sum.
  int64_t shared_bytes() const {
    return ((warps_of_block() + 1) * num_experts + kWarpsOfBlock) * int64_t{sizeof(uint32_t)};
  }

  /// A launch for each step: counters are [expert][warp], so that their running sum in memory
  /// order is each warp's first row in each expert.
  CADRE_HOST_DEVICE int64_t counters() const { return num_experts * warps; }

 private:
  /// Whole steps of a warp.
  static int64_t share(int64_t slots, int64_t warps) {
    return ((slots + warps - 1) / warps + 31) / 32 * 32;
  }
  static RoutePlan cut(int64_t slots, int64_t num_experts, int64_t size, int64_t blocks) {
    return {slots, num_experts, size, (slots + size - 1) / size, blocks};
  }
};

}  // namespace cadre::rows
