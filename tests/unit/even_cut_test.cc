// Every slice belongs to one tile, tiles follow each other, and none is much higher than another.
#include "plan/even_cut.h"

#include <gtest/gtest.h>

namespace cadre::plan {
namespace {

TEST(EvenCut, EverySliceBelongsToOneTile) {
  for (int32_t slices = 0; slices <= 130; ++slices) {
    for (int32_t tiles = 1; tiles <= 30; ++tiles) {
      const EvenCut cut{static_cast<uint32_t>(slices), static_cast<uint32_t>(tiles)};
      int32_t end = 0;
      for (int32_t tile = 0; tile < tiles; ++tile) {
        int32_t first = -1, height = -1;
        cut.tile_at(tile, &first, &height);
        ASSERT_EQ(first, end) << slices << " slices, tile " << tile << " of " << tiles;
        ASSERT_GE(height, slices / tiles);
        ASSERT_LE(height, (slices + tiles - 1) / tiles);
        end = first + height;
      }
      ASSERT_EQ(end, slices) << tiles << " tiles";
    }
  }
}

TEST(EvenCut, HoldsForTheMostRowsThereAre) {
  constexpr uint32_t kSlices = (uint32_t{1} << 31) / 32, kTiles = (kSlices + 4) / 5;
  const EvenCut cut{kSlices, kTiles};
  int32_t first = -1, height = -1;
  cut.tile_at(kTiles - 1, &first, &height);
  EXPECT_EQ(static_cast<uint32_t>(first + height), kSlices);
  EXPECT_LE(height, 5);
}

}  // namespace
}  // namespace cadre::plan
