// The tile walk visits every tile of every group exactly once, and tiles cover the rows.
#include "plan/tile_walk.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>
#include <vector>

#include "bench/shapes/shapes.h"
#include "verify/random.h"

namespace cadre::plan {
namespace {

constexpr RowTiling kTilings[] = {{8, 8},    {16, 8},   {64, 16}, {128, 64},
                                  {256, 16}, {256, 32}, {192, 8}};

TEST(RowTiling, TilesAreEvenAndNeverEmpty) {
  for (const RowTiling& tiling : kTilings) {
    for (int64_t rows = 0; rows <= 2100; ++rows) {
      const int64_t count = tiling.count(rows);
      const int64_t width = tiling.width(rows);
      ASSERT_EQ(count, (rows + tiling.max_rows - 1) / tiling.max_rows);
      if (rows == 0) {
        ASSERT_EQ(width, 0);
        continue;
      }
      ASSERT_EQ(width % tiling.step, 0);
      ASSERT_LE(width, tiling.max_rows);
      ASSERT_GE(count * width, rows) << "rows left over";
      ASSERT_LT((count - 1) * width, rows) << "an empty last tile";
    }
  }
}

/// Every row and column tile of every group, and how often each was visited.
void expect_each_tile_once(const TileWalk& walk, const std::vector<int64_t>& sizes) {
  const auto rows_of = [&](int64_t group) { return sizes[static_cast<size_t>(group)]; };
  TileCursor<decltype(rows_of)> cursor{walk, rows_of, static_cast<int64_t>(sizes.size())};
  std::map<std::tuple<int64_t, int64_t, int64_t>, int> visits;
  std::map<std::pair<int64_t, int64_t>, int64_t> covered;  // group, column tile -> rows
  int64_t expected = 0;
  std::vector<int64_t> offsets = {0};
  for (int64_t size : sizes) {
    expected += walk.tiles_in_group(size);
    offsets.push_back(offsets.back() + size);
  }
  Tile tile{};
  int64_t index = 0;
  for (; cursor.seek(index, &tile); ++index) {
    const int64_t rows = rows_of(tile.group);
    ASSERT_GE(tile.row_begin, 0);
    ASSERT_LT(tile.row_begin, tile.row_end);
    ASSERT_LE(tile.row_end, rows);
    ASSERT_GE(tile.col_tile, 0);
    ASSERT_LT(tile.col_tile, walk.col_tiles);
    ASSERT_EQ(cursor.row_offset, offsets[static_cast<size_t>(tile.group)]);
    ASSERT_EQ(++visits[std::tuple(tile.group, tile.row_begin, tile.col_tile)], 1);
    covered[std::pair(tile.group, tile.col_tile)] += tile.row_end - tile.row_begin;
  }
  ASSERT_EQ(index, expected);
  for (size_t group = 0; group < sizes.size(); ++group) {
    for (int64_t col = 0; col < walk.col_tiles && sizes[group] > 0; ++col) {
      ASSERT_EQ((covered[std::pair(static_cast<int64_t>(group), col)]), sizes[group]);
    }
  }
}

TEST(TileWalk, VisitsEachTileOfRandomRaggedPartitionsOnce) {
  verify::Random random(9);
  for (int round = 0; round < 400; ++round) {
    const RowTiling tiling = kTilings[random.between(0, std::size(kTilings) - 1)];
    const TileWalk walk{tiling, random.between(1, 9), static_cast<int32_t>(random.between(1, 17))};
    std::vector<int64_t> sizes(static_cast<size_t>(random.between(0, 40)));
    for (int64_t& size : sizes) {
      size = random.chance(0.3) ? 0 : random.chance(0.2) ? 1 : random.between(1, 700);
    }
    ASSERT_NO_FATAL_FAILURE(expect_each_tile_once(walk, sizes));
  }
}

TEST(TileWalk, VisitsEachTileOfRoutedSizesOnce) {
  for (double skew : {0.0, 1.0}) {
    const auto sizes = shapes::router_group_sizes(128, 32768, skew, 4);
    ASSERT_NO_FATAL_FAILURE(expect_each_tile_once({{256, 16}, 12, 8}, sizes));
    ASSERT_NO_FATAL_FAILURE(expect_each_tile_once({{128, 64}, 7, 16}, sizes));
  }
}

TEST(TileWalk, HasNoTilesWhereThereIsNothing) {
  ASSERT_NO_FATAL_FAILURE(expect_each_tile_once({{64, 8}, 3, 4}, {}));
  ASSERT_NO_FATAL_FAILURE(expect_each_tile_once({{64, 8}, 3, 4}, {0, 0, 0}));
  ASSERT_NO_FATAL_FAILURE(expect_each_tile_once({{64, 8}, 0, 4}, {5, 9}));  // n = 0
}

TEST(TileWalk, NeighboursInABandShareTheirWeights) {
  const TileWalk walk{{64, 64}, 5, 4};
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(walk.tile_at(0, 64 * 10, i).col_tile, 0);
  EXPECT_EQ(walk.tile_at(0, 64 * 10, 4).col_tile, 1);
  EXPECT_EQ(walk.tile_at(0, 64 * 10, 4).row_begin, 0);
}

TEST(TileWalk, StridedWorkersShareAllTiles) {
  // A persistent grid: worker w takes tiles w, w + W, w + 2W ...
  const std::vector<int64_t> sizes = {100, 0, 1, 515, 64};
  const auto rows_of = [&](int64_t group) { return sizes[static_cast<size_t>(group)]; };
  const TileWalk walk{{128, 8}, 3, 2};
  std::map<std::tuple<int64_t, int64_t, int64_t>, int> visits;
  constexpr int64_t kWorkers = 7;
  for (int64_t worker = 0; worker < kWorkers; ++worker) {
    TileCursor<decltype(rows_of)> cursor{walk, rows_of, 5};
    Tile tile{};
    for (int64_t index = worker; cursor.seek(index, &tile); index += kWorkers) {
      ++visits[std::tuple(tile.group, tile.row_begin, tile.col_tile)];
    }
  }
  EXPECT_EQ(visits.size(), static_cast<size_t>(3 * (1 + 1 + 5 + 1)));
  for (const auto& [tile, count] : visits) EXPECT_EQ(count, 1);
}

TEST(BandedTiles, SameOrderAsTheTileWalk) {
  for (int32_t row_tiles : {1, 2, 15, 16, 17, 31, 33, 100}) {
    for (int32_t col_tiles : {1, 3, 24, 57}) {
      for (int32_t band : {1, 8, 16}) {
        const BandedTiles narrow{row_tiles, col_tiles, band};
        const TileWalk wide{{128, 128}, col_tiles, band};
        for (int32_t index = 0; index < row_tiles * col_tiles; ++index) {
          int32_t row_tile = -1;
          int32_t col_tile = -1;
          narrow.tile_at(index, &row_tile, &col_tile);
          const Tile expected = wide.tile_at(0, int64_t{row_tiles} * 128, index);
          ASSERT_EQ(int64_t{row_tile} * 128, expected.row_begin);
          ASSERT_EQ(col_tile, expected.col_tile);
        }
      }
    }
  }
}

}  // namespace
}  // namespace cadre::plan
