// The tiles of a group are visited once each, band by band; kinds of tiles are mixed evenly.
#include "plan/tile_walk.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "plan/even_cut.h"

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

TEST(EvenBand, HoldsAllTilesInTheFewestBands) {
  for (int32_t limit : {1, 10, 16}) {
    for (int32_t tiles = 1; tiles <= 200; ++tiles) {
      const int32_t band = even_band(tiles, limit);
      const int32_t bands = (tiles + band - 1) / band;
      ASSERT_LE(band, limit) << tiles;
      ASSERT_EQ(bands, (tiles + limit - 1) / limit) << tiles;
      ASSERT_LT(band * bands - tiles, bands) << tiles;  // the last one is short by less than a row
    }
  }
}

TEST(EvenMix, VisitsEachTileOnceAndKindsInOrder) {
  for (int64_t tiles = 2; tiles <= 60; ++tiles) {
    for (int64_t first = 1; first < tiles; ++first) {
      const EvenMix mix{first, tiles};
      int64_t seen[2] = {0, 0};
      for (int64_t index = 0; index < tiles; ++index) {
        const int64_t position = mix.position_of(index);
        const bool second = position >= first;
        ASSERT_EQ(position, (second ? first : 0) + seen[second ? 1 : 0]++) << first << "/" << tiles;
        // Never more than one tile from the share that is due.
        const int64_t due = (index + 1) * first;
        ASSERT_LE(std::abs(seen[0] * tiles - due), tiles) << first << "/" << tiles;
      }
      ASSERT_EQ(seen[0], first);
    }
  }
}

/// What the schedulers of the Hopper kernels compose: one side of a group's results is cut evenly
/// in small steps (gmm: rows, in steps of 16; tgmm: columns, in steps of 64), the other one into
/// full tiles, and the tiles are visited in bands.
TEST(TilesOfAGroup, CoverEachResultOnce) {
  struct Kernel {
    int32_t step, widest, band;
    bool cuts_rows;
  };
  std::mt19937 random(7);
  for (const Kernel& kernel : {Kernel{16, 192, 10, true}, Kernel{16, 256, 10, true},
                               Kernel{16, 64, 10, true}, Kernel{64, 192, 16, false}}) {
    for (int round = 0; round < 60; ++round) {
      const auto steps = static_cast<int32_t>(random() % 300 + 1);
      const auto other_tiles = static_cast<int32_t>(random() % 40 + 1);
      const int32_t per_tile = kernel.widest / kernel.step;
      const int32_t least = (steps + per_tile - 1) / per_tile;
      const int32_t tiles =
          least + (round % 3 == 0 && least < steps ? 1 : 0);  // a filled last wave
      const EvenCut cut{static_cast<uint32_t>(steps), static_cast<uint32_t>(tiles)};
      const int32_t row_tiles = kernel.cuts_rows ? tiles : other_tiles;
      const int32_t col_tiles = kernel.cuts_rows ? other_tiles : tiles;
      const BandedTiles order{row_tiles, col_tiles, even_band(row_tiles, kernel.band)};
      std::vector<int> written(static_cast<size_t>(steps * other_tiles), 0);
      for (int32_t index = 0; index < row_tiles * col_tiles; ++index) {
        const auto [row_tile, col_tile] = tile_of(order, index);
        int32_t first = 0;
        int32_t count = 0;
        cut.tile_at(kernel.cuts_rows ? row_tile : col_tile, &first, &count);
        ASSERT_GE(count, 1);
        ASSERT_LE(count, per_tile);
        const int32_t other = kernel.cuts_rows ? col_tile : row_tile;
        for (int32_t step = first; step < first + count; ++step) {
          ++written[static_cast<size_t>(step * other_tiles + other)];
        }
      }
      for (const int times : written)
        ASSERT_EQ(times, 1) << steps << " steps, " << tiles << " tiles";
    }
  }
}

}  // namespace
}  // namespace cadre::plan
