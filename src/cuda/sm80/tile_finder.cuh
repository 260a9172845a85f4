// Tile t of the grid belongs to block t mod gridDim.x. Each warp finds a tile's group by itself, 32
// groups at a step; tile numbers only grow.
#pragma once

#include <cstdint>

#include "cuda/sm80/arguments.h"
#include "plan/tile_walk.h"

namespace cadre::sm80 {

/// Row tiles of one group that run together over all columns: their rows of A and a few columns of
/// B share the cache.
inline constexpr int kBandTiles = 16;

/// Few registers, since it lives beside the accumulators: a tile's place is counted in tiles.
struct ProductTile {
  int group = 0;
  int row_tile = 0;
  int col_tile = 0;
};

/// Finds tile `index`, which lies in tile->group or behind it. False behind the last tile.
__device__ __forceinline__ bool find_tile(const ProductArguments& args, int index,
                                          ProductTile* tile) {
  const int groups = static_cast<int>(args.num_groups);
  const int32_t* ends = args.table.tile_ends;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (int first = tile->group; first < groups; first += 32) {
    const int end = first + lane < groups ? ends[first + lane] : 0;
    const uint32_t behind = __ballot_sync(0xffffffffu, end > index);
    if (behind == 0) continue;
    const int owner = __ffs(static_cast<int>(behind)) - 1;
    const int group = first + owner;
    const GroupEntry& entry = args.table.entries[group];
    const plan::BandedTiles order{entry.row_tiles, entry.col_tiles, kBandTiles};
    // The group's first tile, counted from its end.
    const int begin = __shfl_sync(0xffffffffu, end, owner) - order.row_tiles * order.col_tiles;
    tile->group = group;
    order.tile_at(index - begin, &tile->row_tile, &tile->col_tile);
    return true;
  }
  return false;
}

}  // namespace cadre::sm80
