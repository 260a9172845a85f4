// The device side of tile_records.h: called by consumer warpgroups before a tile's products and
// after its results. What must outlive the products lies in memory, so that no register is held for
// it.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/clock.cuh"
#include "cuda/sm90/schedule/tile.cuh"
#include "cuda/sm90/schedule/tile_records.h"

namespace cadre::sm90 {

#ifdef CADRE_RECORD_SCHEDULE

__device__ __forceinline__ void name_tile(const Tile& tile, TileRecord* record) {
  record->group = tile.group;
  record->row = tile.group_row;
  record->rows = tile.rows;
  record->column = tile.feature;
}
__device__ __forceinline__ void name_tile(const TgmmTile& tile, TileRecord* record) {
  record->group = -1;
  record->row = tile.row;
  record->rows = tile.rows;
  record->column = tile.n;
}
__device__ __forceinline__ void name_tile(const GroupedTile& tile, TileRecord* record) {
  record->group = tile.group;
  record->row = tile.k;
  record->rows = tile.rows;
  record->column = tile.n;
}

// One thread of a warpgroup; of two that share a tile one of the first.
template <typename Traits>
__device__ __forceinline__ bool records_here(const TileRecorder& recorder) {
  const uint32_t thread = ptx::thread_index();
  return recorder.tiles != nullptr && (Traits::kSharers == 1 ? thread % 128 == 0 : thread == 128);
}

__device__ __forceinline__ uint32_t section_of_warpgroup() {
  return 2 * blockIdx.x + ptx::thread_index() / 128 - 1;
}

#endif

template <typename Traits>
__device__ __forceinline__ void record_start([[maybe_unused]] const TileRecorder& recorder) {
#ifdef CADRE_RECORD_SCHEDULE
  if (!records_here<Traits>(recorder)) return;
  const uint32_t section = section_of_warpgroup();
  const uint32_t count = recorder.counts[section];
  if (count >= recorder.room) return;
  recorder.tiles[section * recorder.room + count].start_ns = ptx::global_time_ns();
#endif
}

template <typename Traits, typename Tile>
__device__ __forceinline__ void record_end([[maybe_unused]] const TileRecorder& recorder,
                                           [[maybe_unused]] const Tile& tile) {
#ifdef CADRE_RECORD_SCHEDULE
  if (!records_here<Traits>(recorder)) return;
  const uint32_t section = section_of_warpgroup();
  const uint32_t count = recorder.counts[section]++;
  if (count >= recorder.room) return;
  TileRecord* const record = recorder.tiles + section * recorder.room + count;
  name_tile(tile, record);
  record->sm = static_cast<int32_t>(ptx::multiprocessor());
  record->end_ns = ptx::global_time_ns();
#endif
}

}  // namespace cadre::sm90
