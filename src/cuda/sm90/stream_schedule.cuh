// The scheduler of shapes that are bound by reading weights: a CTA's first tile as soon as
// possible.
#pragma once

#include "cuda/sm90/schedule.cuh"

namespace cadre::sm90 {

// The tile that GroupWindow finds for blockIdx.x, where the first 32 groups are all that matters
// and ordinary. Few instructions: those of a kernel that wasn't in use come from memory one after
// the other, and this is what every other role waits for.
template <typename Traits>
__device__ bool find_first(const GmmArguments& args, Tile& tile) {
  constexpr int kMaxRows = INT32_MAX / 32;  // sums of 32 of them fit
  constexpr int kMaxTokenTiles = 3;         // GroupWindow may cut larger groups in its own way
  const cuda::GroupInputs& groups = args.groups;
  if (groups.group_offset_pointer != nullptr || groups.num_local != groups.num_groups ||
      groups.group_offset != 0 || args.epilogue.has_c || args.m > kMaxRows ||
      cuda::is_narrow(groups.form)) {
    return false;
  }
  const int lane = threadIdx.x % 32;
  const int64_t size =
      lane < groups.num_groups ? cuda::read_wide_form(groups.sizes, groups.form, lane) : 0;
  const bool ordinary = size >= 0 && size <= args.m && size <= args.list_rows &&
                        size <= kMaxTokenTiles * Traits::kTokens;
  const int rows = ordinary ? static_cast<int>(size) : 0;
  const int token_tiles = (rows + Traits::kTokens - 1) / Traits::kTokens;
  const int row_end = warp_inclusive_sum(rows, lane);
  const int tiles_end = warp_inclusive_sum(token_tiles, lane);
  const uint32_t feature_tiles = (args.n + Traits::kFeatures - 1) / Traits::kFeatures;
  const uint32_t token_tile = blockIdx.x / feature_tiles;
  const uint32_t above = __ballot_sync(0xffffffffu, tiles_end > static_cast<int>(token_tile));
  const int owner = __ffs(above) - 1;
  if (!__all_sync(0xffffffffu, ordinary && row_end <= args.m) || above == 0) return false;
  if (__shfl_sync(0xffffffffu, token_tiles, owner) != 1) return false;
  tile.group = owner;
  tile.rows = __shfl_sync(0xffffffffu, rows, owner);
  tile.row = __shfl_sync(0xffffffffu, row_end, owner) - tile.rows;
  tile.group_row = 0;
  tile.control = (tile.rows + kTokenStep - 1) / kTokenStep * kTokenStep;
  tile.feature = static_cast<int>((blockIdx.x - token_tile * feature_tiles) * Traits::kFeatures);
  return true;
}

template <typename Traits, typename Storage>
__device__ void schedule_at_once(Storage& shared, const GmmArguments& args) {
  Cursor<Traits::kRingSlots> ring;
  TileNumbers numbers;
  Tile first{};
  if (find_first<Traits>(args, first)) {
    publish_tile(shared, ring, first);
    numbers.advance(args);
  }
  schedule<Traits>(shared, args, ring, numbers);
}

}  // namespace cadre::sm90
