// The order in which tiles are visited, for host and device. How a side is cut into tiles of nearly
// the same size is even_cut.h.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace cadre::plan {

/// Bands of `band` row tiles; inside a band the row tile runs fastest, so that its rows and a few
/// columns of the weights are read by neighbours while they are still in cache.
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

/// The height of as few bands of at most `limit` row tiles as hold them, evenly filled.
CADRE_HOST_DEVICE int32_t even_band(int32_t row_tiles, int32_t limit) {
  const int32_t bands = (row_tiles + limit - 1) / limit;
  return (row_tiles + bands - 1) / bands;
}

/// Tiles of two kinds, numbered first kind first, visited so that both are evenly spread.
struct EvenMix {
  int64_t first_kind;
  int64_t tiles;  ///< of both

  CADRE_HOST_DEVICE int64_t position_of(int64_t index) const {
    const int64_t share = index * first_kind;
    const int64_t before = share / tiles;  // of the first kind
    const bool is_first = share - before * tiles + first_kind >= tiles;
    return is_first ? before : first_kind + index - before;
  }
};

}  // namespace cadre::plan
