// The tiles of grouped_gemm. The table of groups (sm80/prepare_kernel.cu) says how many tiles each
// group has; a scheduler warp takes their numbers from a counter that all CTAs share, finds the
// group of each, 32 groups at a step, and feeds everything that depends on it into the ring.
#pragma once

#include <cstdint>

#include "cuda/sm90/arguments.h"
#include "cuda/sm90/mma/operands.cuh"
#include "cuda/sm90/schedule/tile.cuh"
#include "cuda/sm90/schedule/tile_ring.cuh"
#include "plan/even_cut.h"
#include "plan/tile_walk.h"

namespace cadre::sm90 {

// Row tiles of a group that are swept along its columns together.
inline constexpr int32_t kGroupedBand = 16;

// The group that a tile number lies in, and its tiles; numbers only grow. A whole warp.
class GroupFinder {
 public:
  __device__ __forceinline__ explicit GroupFinder(const GroupedArguments& args) : args_(args) {}

  // True when the number lies in another group than the last one. Some group must have it.
  __device__ __forceinline__ bool find(uint32_t number) {
    if (number < end_) return false;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int first = group_ + 1;; first += 32) {
      const int at = first + lane;
      const uint32_t end =
          at < args_.num_groups ? static_cast<uint32_t>(args_.table.tile_ends[at]) : 0u;
      const uint32_t behind = __ballot_sync(0xffffffffu, end > number);
      if (behind == 0) continue;
      const int owner = __ffs(static_cast<int>(behind)) - 1;
      group_ = first + owner;
      end_ = __shfl_sync(0xffffffffu, end, owner);
      return true;
    }
  }

  __device__ __forceinline__ int group() const { return group_; }
  __device__ __forceinline__ uint32_t end() const { return end_; }

 private:
  const GroupedArguments& args_;
  int group_ = -1;
  uint32_t end_ = 0;
};

// One warp: all tiles of a CTA, and the end.
template <typename Traits, typename Storage>
__device__ void schedule(Storage& shared, const GroupedArguments& args) {
  const uint32_t total = args.verdict->tiles;
  Cursor<Traits::kRingSlots> ring;
  TileNumbers<uint32_t> numbers(args.tile_counter);
  GroupFinder finder(args);
  GroupedTile tile{};
  uint32_t begin = 0;  // of the group
  plan::BandedTiles order{};
  plan::EvenCut columns{};
  while (true) {
    const bool more = numbers.index() < total;
    if (more) numbers.claim();  // its answer comes while this tile is handed out
    if (more && finder.find(numbers.index())) {
      const sm80::GroupEntry& entry = args.table.entries[finder.group()];
      tile.group = finder.group();
      tile.rows = static_cast<int>(entry.k);
      tile.end_k = static_cast<int>(entry.m);
      tile.end_n = static_cast<int>(entry.n);
      // A group without k gives beta * C, whatever alpha is.
      tile.alpha = tile.rows > 0 ? static_cast<float>(entry.alpha) : 0.0f;
      tile.beta = Traits::kReadsC ? static_cast<float>(entry.beta) : 0.0f;
      tile.line = static_cast<int>(entry.row_begin);
      order = {entry.row_tiles, entry.col_tiles, plan::even_band(entry.row_tiles, kGroupedBand)};
      // Widths differ by at most 64 columns, so that there is no thin tile at the edge.
      columns = {static_cast<uint32_t>((tile.end_n + 63) / 64),
                 static_cast<uint32_t>(entry.col_tiles)};
      begin = finder.end() - static_cast<uint32_t>(entry.row_tiles * entry.col_tiles);
    }
    if (more) {
      int32_t row_tile = 0;
      int32_t col_tile = 0;
      order.tile_at(static_cast<int32_t>(numbers.index() - begin), &row_tile, &col_tile);
      columns.tile_at(col_tile, &tile.n, &tile.columns);
      tile.k = row_tile * Traits::kRowsA;
      tile.n *= 64;
      tile.columns *= 64;
    } else {
      tile.set_end();
    }
    publish_tile(shared, ring, tile);
    if (!more) break;
    numbers.advance();
  }
  numbers.finish(total);
}

}  // namespace cadre::sm90
