// The tiles of a group are visited once each, band by band.
#include "plan/tile_walk.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace cadre::plan {
namespace {

std::pair<int32_t, int32_t> tile_of(const BandedTiles& tiles, int32_t index) {
  std::pair<int32_t, int32_t> tile = {-1, -1};
  tiles.tile_at(index, &tile.first, &tile.second);
  return tile;
}

TEST(BandedTiles, VisitsEachTileOnce) {
  for (int32_t row_tiles : {1, 2, 15, 16, 17, 31, 33, 100}) {
    for (int32_t col_tiles : {1, 3, 24, 57}) {
      for (int32_t band : {1, 8, 16}) {
        const BandedTiles tiles{row_tiles, col_tiles, band};
        std::set<std::pair<int32_t, int32_t>> visited;
        for (int32_t index = 0; index < row_tiles * col_tiles; ++index) {
          const auto tile = tile_of(tiles, index);
          ASSERT_GE(tile.first, 0);
          ASSERT_LT(tile.first, row_tiles);
          ASSERT_GE(tile.second, 0);
          ASSERT_LT(tile.second, col_tiles);
          ASSERT_TRUE(visited.insert(tile).second)
              << "twice: " << tile.first << ", " << tile.second;
        }
      }
    }
  }
}

TEST(BandedTiles, FinishesABandBeforeTheNext) {
  for (int32_t row_tiles : {10, 16, 33}) {
    const BandedTiles tiles{row_tiles, 5, 4};
    int32_t last_band = 0;
    for (int32_t index = 0; index < row_tiles * 5; ++index) {
      const int32_t band = tile_of(tiles, index).first / 4;
      ASSERT_GE(band, last_band);
      last_band = band;
    }
  }
}

TEST(BandedTiles, NeighboursInABandShareTheirWeights) {
  const BandedTiles tiles{10, 5, 4};
  for (int32_t i = 0; i < 4; ++i) EXPECT_EQ(tile_of(tiles, i), std::pair(i, 0));
  EXPECT_EQ(tile_of(tiles, 4), std::pair(0, 1));
  // The last band is two tiles high.
  EXPECT_EQ(tile_of(tiles, 2 * 4 * 5), std::pair(8, 0));
  EXPECT_EQ(tile_of(tiles, 2 * 4 * 5 + 1), std::pair(9, 0));
  EXPECT_EQ(tile_of(tiles, 2 * 4 * 5 + 2), std::pair(8, 1));
}

}  // namespace
}  // namespace cadre::plan
