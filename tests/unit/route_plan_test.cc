// How route shares out its slots: every slot has a warp, and what one block takes fits it.
#include "cuda/rows/route_plan.h"

#include <gtest/gtest.h>

namespace cadre::rows {
namespace {

TEST(RoutePlan, CoversEverySlot) {
  for (const int64_t slots :
       {0, 1, 31, 32, 33, 512, 1024, 1025, 2048, 2049, 65536, 131072, 131073, 1 << 24}) {
    for (const int64_t experts : {0, 1, 8, 128, 343, 345, 2048, 4096}) {
      const RoutePlan plan = RoutePlan::of(slots, experts);
      EXPECT_EQ(plan.slots_of_warp % 32, 0);
      EXPECT_GE(plan.warps * plan.slots_of_warp, slots);
      EXPECT_LT((plan.warps - 1) * plan.slots_of_warp, std::max<int64_t>(slots, 1));
      EXPECT_LE(plan.warps, 512);
      if (!plan.one_block) continue;
      EXPECT_LE(plan.warps, RoutePlan::kWarpsOfBlock) << slots;
      EXPECT_LE(plan.counters(), RoutePlan::kMostSharedCounters) << slots << ", " << experts;
    }
  }
}

TEST(RoutePlan, OneBlockTakesADecodeStep) {
  EXPECT_TRUE(RoutePlan::of(0, 128).one_block);
  EXPECT_TRUE(RoutePlan::of(64 * 8, 128).one_block);
  EXPECT_TRUE(RoutePlan::of(2048, 256).one_block);
  EXPECT_FALSE(RoutePlan::of(2049, 8).one_block);
  EXPECT_FALSE(RoutePlan::of(2048, 4096).one_block);
}

}  // namespace
}  // namespace cadre::rows
