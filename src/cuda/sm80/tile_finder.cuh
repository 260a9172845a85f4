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
template <int kTileM, int kTileN>
__device__ __forceinline__ bool find_tile(const ProductArguments& args, int64_t index,
                                          ProductTile* tile) {
  const int groups = static_cast<int>(args.num_groups);
  const int64_t* ends = args.table.tile_ends;
  if (groups == 0 || index >= ends[groups - 1]) return false;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t behind = 0;
  int group = tile->group;
  while (true) {
    behind = __ballot_sync(0xffffffffu, group + lane < groups && ends[group + lane] > index);
    if (behind != 0) break;
    group += 32;
  }
  group += __ffs(static_cast<int>(behind)) - 1;
  const GroupEntry& entry = args.table.entries[group];
  const int64_t begin = group == 0 ? 0 : ends[group - 1];
  const plan::TileWalk walk{.tiling = {.max_rows = kTileM, .step = kTileM},
                            .col_tiles = (entry.n + kTileN - 1) / kTileN,
                            .band = kBandTiles};
  const plan::Tile found = walk.tile_at(group, entry.m, index - begin);
  *tile = {group, static_cast<int>(found.row_begin / kTileM), static_cast<int>(found.col_tile)};
  return true;
}

}  // namespace cadre::sm80
