// The order in which the tiles of ragged groups are visited, for host and device.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace cadre::plan {

/// Cuts the rows of a group into tiles of equal width (a multiple of `step`, at most `max_rows`,
/// itself a multiple of `step`), never into full tiles and a thin rest: a thin tile reads all the
/// weights for a few rows. With T = ceil(rows / max_rows) tiles the last one is never empty, since
/// (T - 1) * width <= (T - 1) * max_rows < rows.
struct RowTiling {
  int32_t max_rows;
  int32_t step;

  CADRE_HOST_DEVICE int64_t count(int64_t rows) const { return (rows + max_rows - 1) / max_rows; }

  CADRE_HOST_DEVICE int64_t width(int64_t rows) const {
    const int64_t tiles = count(rows);
    if (tiles == 0) return 0;
    const int64_t even = (rows + tiles - 1) / tiles;
    return (even + step - 1) / step * step;
  }
};

struct Tile {
  int64_t group;
  int64_t row_begin;  ///< within the group
  int64_t row_end;    ///< at most the group's rows
  int64_t col_tile;
};

/// Tiles of one group: bands of `band` row tiles; inside a band the row tile runs fastest, so the
/// band's weights are read by neighbours while they are still in cache.
struct TileWalk {
  RowTiling tiling;
  int64_t col_tiles;
  int32_t band;

  CADRE_HOST_DEVICE int64_t tiles_in_group(int64_t rows) const {
    return tiling.count(rows) * col_tiles;
  }

  CADRE_HOST_DEVICE Tile tile_at(int64_t group, int64_t rows, int64_t index) const {
    const int64_t row_tiles = tiling.count(rows);
    const int64_t band_tiles = static_cast<int64_t>(band) * col_tiles;
    const int64_t band_index = index / band_tiles;
    const int64_t inside = index % band_tiles;
    const int64_t left = row_tiles - band_index * band;
    const int64_t height = left < band ? left : band;
    const int64_t row_tile = band_index * band + inside % height;
    const int64_t width = tiling.width(rows);
    const int64_t begin = row_tile * width;
    const int64_t end = begin + width < rows ? begin + width : rows;
    return Tile{group, begin, end, inside / height};
  }
};

/// The same order for tiles that are counted in 32 bits, for kernels that divide many times.
struct BandedTiles {
  int32_t row_tiles;
  int32_t col_tiles;
  int32_t band;

  CADRE_HOST_DEVICE void tile_at(int32_t index, int32_t* row_tile, int32_t* col_tile) const {
    const uint32_t band_tiles = static_cast<uint32_t>(band) * static_cast<uint32_t>(col_tiles);
    const uint32_t band_index = static_cast<uint32_t>(index) / band_tiles;
    const uint32_t inside = static_cast<uint32_t>(index) - band_index * band_tiles;
    const int32_t first = static_cast<int32_t>(band_index) * band;
    const int32_t left = row_tiles - first;
    const auto height = static_cast<uint32_t>(left < band ? left : band);
    const uint32_t column = inside / height;
    *row_tile = first + static_cast<int32_t>(inside - column * height);
    *col_tile = static_cast<int32_t>(column);
  }
};

/// Finds the group of a global tile index while indices only grow. `Sizes` is a callable
/// group -> rows that has already been validated.
template <typename Sizes>
struct TileCursor {
  TileWalk walk;
  Sizes rows_of;
  int64_t num_groups;
  int64_t group = 0;
  int64_t first = 0;       ///< global index of the group's first tile
  int64_t row_offset = 0;  ///< rows before the group

  /// False when `index` lies behind the last tile.
  CADRE_HOST_DEVICE bool seek(int64_t index, Tile* tile) {
    while (group < num_groups) {
      const int64_t rows = rows_of(group);
      const int64_t tiles = walk.tiles_in_group(rows);
      if (index < first + tiles) {
        *tile = walk.tile_at(group, rows, index - first);
        return true;
      }
      first += tiles;
      row_offset += rows;
      ++group;
    }
    return false;
  }
};

}  // namespace cadre::plan
