// The order in which the tiles of one group are visited, for host and device.
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

}  // namespace cadre::plan
