// How the rows of a group are cut: into as few tiles as hold them, whose heights differ by one
// slice at most, rather than into full tiles and a thin rest that loads as many columns as the
// others.
#pragma once

#include <cstdint>

#include "cuda/sm80/mma_shape.h"
#include "cuda/sm80/tile_queue.cuh"
#include "plan/even_cut.h"

namespace cadre::sm80 {

/// Where a tile lies in its group. Divisions: a warp finds it once and leaves it in shared memory.
struct EvenPlace {
  int row;
  int rows;    ///< that exist
  int slices;  ///< of EvenShape::kSliceRows rows; in the last tile the last one may end early
  int col;

  /// Where `kMoveBack`, a matrix has whole vectors of 8 rows and a tile of them at least; its last
  /// tile is moved back into it. So is that of the last columns always. What such a tile shares
  /// with the tile before it has the same bits.
  template <bool kMoveBack>
  __device__ __forceinline__ static EvenPlace of(const QueuedTile& tile) {
    constexpr int kSliceRows = EvenShape::kSliceRows;
    const auto m = static_cast<int>(tile.entry->m);
    const plan::EvenCut cut{
        .slices = (static_cast<uint32_t>(m) + kSliceRows - 1) / uint32_t{kSliceRows},
        .tiles = static_cast<uint32_t>(tile.entry->row_tiles)};
    EvenPlace place;
    int first_slice = 0;
    cut.tile_at(tile.row_tile, &first_slice, &place.slices);
    place.row = first_slice * kSliceRows;
    if (kMoveBack) place.row = min(place.row, m - place.slices * kSliceRows);
    place.rows = min(place.slices * kSliceRows, m - place.row);
    place.col =
        min(tile.col_tile * EvenShape::kTileN, static_cast<int>(tile.entry->n) - EvenShape::kTileN);
    return place;
  }
};

}  // namespace cadre::sm80
