// How route shares out its slots: every slot has a warp, and what one launch takes fits its blocks.
#include "cuda/rows/route_plan.h"

#include <gtest/gtest.h>

namespace cadre::rows {
namespace {

TEST(RoutePlan, CoversEverySlot) {
  for (const int64_t slots : {0, 1, 31, 32, 33, 512, 1024, 1025, 2048, 2049, 65536, 131072, 131073,
                              1 << 18, (1 << 18) + 1, 1 << 24}) {
    for (const int64_t experts : {0, 1, 8, 128, 343, 345, 2048, 4096}) {
      for (const bool has_clusters : {false, true}) {
        const RoutePlan plan = RoutePlan::of(slots, experts, has_clusters);
        EXPECT_EQ(plan.slots_of_warp % 32, 0);
        EXPECT_GE(plan.warps * plan.slots_of_warp, slots);
        EXPECT_LT((plan.warps - 1) * plan.slots_of_warp, std::max<int64_t>(slots, 1));
        EXPECT_LE(plan.warps, 512);
        if (plan.blocks == 0) continue;
        EXPECT_TRUE(plan.blocks == 1 || has_clusters) << slots;
        EXPECT_LE(plan.warps, RoutePlan::kWarpsOfBlock * plan.blocks) << slots;
        EXPECT_LE(plan.shared_bytes(), RoutePlan::kMostSharedBytes) << slots << ", " << experts;
      }
    }
  }
}

TEST(RoutePlan, OneBlockTakesADecodeStep) {
  EXPECT_EQ(RoutePlan::of(0, 128, true).blocks, 1);
  EXPECT_EQ(RoutePlan::of(64 * 8, 128, true).blocks, 1);
  EXPECT_EQ(RoutePlan::of(2048, 256, false).blocks, 1);
  EXPECT_EQ(RoutePlan::of(2049, 8, false).blocks, 0);
  EXPECT_EQ(RoutePlan::of(2048, 4096, true).blocks, 0);
}

TEST(RoutePlan, AClusterTakesATrainingStep) {
  EXPECT_EQ(RoutePlan::of(2049, 8, true).blocks, RoutePlan::kClusterBlocks);
  EXPECT_EQ(RoutePlan::of(8192 * 8, 128, true).blocks, RoutePlan::kClusterBlocks);
  EXPECT_EQ(RoutePlan::of(32768 * 8, 256, true).blocks, RoutePlan::kClusterBlocks);
  EXPECT_EQ(RoutePlan::of(32768 * 8 + 1, 256, true).blocks, 0);
}

}  // namespace
}  // namespace cadre::rows
