// The tiles of a block, found ahead of time: tile t of the grid belongs to block t mod gridDim.x,
// or behind the first ones to the block that claims it. What global memory knows of a tile is
// copied into shared memory, asynchronously, while the tile two before it is computed; so nobody
// waits for it.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/sm80/arguments.h"
#include "cuda/sm80/mma_shape.h"
#include "cuda/sm80/tile_finder.cuh"
#include "plan/tile_walk.h"

namespace cadre::sm80 {

/// In shared memory. Entry of tile t at t mod 4: written while t - 2 begins, when all warps are
/// past t - 4. Ends of the groups from that of tile t on, at t mod 2: for finding t + 1.
struct TileQueueStorage {
  GroupEntry entries[4];
  int32_t ends[2][32];
  int32_t claims[4];  ///< number of tile t at t mod 4
};
static_assert(sizeof(TileQueueStorage) <= kTileQueueBytes);

/// A tile's place in its group, whose entry lies in shared memory.
struct QueuedTile {
  const GroupEntry* entry = nullptr;
  int row_tile = 0;
  int col_tile = 0;
};

/// Whose tiles cost the same takes them in a fixed order; claims balance those that don't, for a
/// round trip to memory that one warp waits for (claim()).
enum class TileOrder { kFixed, kClaimed };

template <TileOrder kOrder = TileOrder::kFixed>
class TileQueue {
 public:
  /// Finds the first two tiles. All threads of the block call this; a barrier follows.
  __device__ __forceinline__ TileQueue(const ProductArguments& args, TileQueueStorage* storage)
      : args_(args), storage_(storage) {
    Found first = search(0, index_of(0));
    copy_entry(first, 0);
    Found second = first.exists() ? search(first.group, index_of(1)) : Found{};
    copy_entry(second, 1);
    const int group = second.group + lane();
    if (threadIdx.x < 32 && second.exists() && group < groups()) {
      storage_->ends[1][lane()] = args_.table.tile_ends[group];
    }
    current_ = first;
    next_ = second;
  }

  /// The first tile: false when there is none. Behind the barrier.
  __device__ __forceinline__ bool first(QueuedTile* tile) const { return place(current_, 0, tile); }

  /// The first tile, and in next() the one after, as a number for those who have few registers, 0
  /// when there is none: tile_at() gives the rest anew.
  __device__ __forceinline__ int first() const { return current_.before_end; }
  __device__ __forceinline__ QueuedTile tile_at(int turn, int before_end) const {
    QueuedTile tile;
    place({.group = 0, .before_end = before_end}, turn, &tile);
    return tile;
  }

  __device__ __forceinline__ const GroupEntry& entry_at(int turn) const {
    return storage_->entries[turn % 4];
  }

  /// The same of the tile after the current one; 0 when there is none.
  __device__ __forceinline__ int ahead() const { return next_.before_end; }

  /// Called at the beginning of every tile, by all threads: gives the tile after it, and starts the
  /// copies for the one after that. They belong to the next group of copies that is committed, and
  /// must have arrived for all threads before the next call.
  __device__ __forceinline__ bool next(QueuedTile* tile) {
    const bool exists = place(next_, turn_ + 1, tile);
    find_next(exists);
    return exists;
  }
  __device__ __forceinline__ int next() {
    const int before_end = next_.before_end;
    find_next(next_.exists());
    return before_end;
  }

  /// Tiles begun.
  __device__ __forceinline__ int turn() const { return turn_; }

  /// Claims the tile of turn() + kGivenTurns: one thread, before every next(), and a barrier later.
  __device__ __forceinline__ int claim() const { return atomicAdd(args_.table.claimed, 1); }
  __device__ __forceinline__ void publish(int claimed) const {
    storage_->claims[(turn_ + kGivenTurns) % 4] =
        kGivenTurns * static_cast<int>(gridDim.x) + claimed;
  }

 private:
  struct Found {
    int group = -1;
    int before_end = 0;  ///< tiles from this one to the end of its group
    __device__ __forceinline__ bool exists() const { return group >= 0; }
  };

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ int groups() const { return static_cast<int>(args_.num_groups); }
  /// Turns whose tiles are given: a tile is found two turns ahead, with a claim of the turn before.
  static constexpr int kGivenTurns = 3;

  __device__ __forceinline__ int index_of(int turn) const {
    if (kOrder == TileOrder::kClaimed && turn >= kGivenTurns) return storage_->claims[turn % 4];
    return static_cast<int>(blockIdx.x) + turn * static_cast<int>(gridDim.x);
  }

  /// `end` is where the tiles of group first + lane end.
  __device__ __forceinline__ static Found found(int first, int end, int index) {
    const uint32_t behind = __ballot_sync(0xffffffffu, end > index);
    if (behind == 0) return {};
    const int owner = __ffs(static_cast<int>(behind)) - 1;
    return {first + owner, __shfl_sync(0xffffffffu, end, owner) - index};
  }

  __device__ __forceinline__ Found search(int first, int index) const {
    for (; first < groups(); first += 32) {
      const int end = first + lane() < groups() ? args_.table.tile_ends[first + lane()] : INT32_MIN;
      if (const Found tile = found(first, end, index); tile.exists()) return tile;
    }
    return {};
  }

  __device__ __forceinline__ void find_next(bool exists) {
    if (exists) {
      const int first = next_.group;
      const int index = index_of(turn_ + 2);
      const int end =
          first + lane() < groups() ? storage_->ends[(turn_ + 1) % 2][lane()] : INT32_MIN;
      next_ = found(first, end, index);
      // More than 32 groups on: seldom, and worth a wait.
      if (!next_.exists() && first + 32 < groups()) next_ = search(first + 32, index);
      if (threadIdx.x < 32 && next_.exists()) start_copies();
    }
    ++turn_;
  }

  __device__ __forceinline__ bool place(const Found& tile, int turn, QueuedTile* result) const {
    if (!tile.exists()) return false;
    const GroupEntry& entry = storage_->entries[turn % 4];
    const plan::BandedTiles order{entry.row_tiles, entry.col_tiles, kBandTiles};
    result->entry = &entry;
    order.tile_at(order.row_tiles * order.col_tiles - tile.before_end, &result->row_tile,
                  &result->col_tile);
    return true;
  }

  static constexpr int kEntryVectors = static_cast<int>(sizeof(GroupEntry) / 16);

  __device__ __forceinline__ void copy_entry(const Found& tile, int turn) const {
    if (threadIdx.x >= kEntryVectors || !tile.exists()) return;
    reinterpret_cast<uint4*>(&storage_->entries[turn])[threadIdx.x] =
        reinterpret_cast<const uint4*>(&args_.table.entries[tile.group])[threadIdx.x];
  }

  /// By the first warp.
  __device__ __forceinline__ void start_copies() const {
    if (lane() < kEntryVectors) {
      const auto* from = reinterpret_cast<const char*>(&args_.table.entries[next_.group]);
      ptx::cp_async_16(ptx::shared_address(&storage_->entries[(turn_ + 2) % 4]) + 16u * threadIdx.x,
                       from + 16 * lane());
    }
    const int group = next_.group + lane();
    if (group < groups()) {
      ptx::cp_async_4(ptx::shared_address(&storage_->ends[turn_ % 2][lane()]),
                      &args_.table.tile_ends[group]);
    }
  }

  const ProductArguments& args_;
  TileQueueStorage* storage_;
  Found current_;
  Found next_;    ///< of the tile after the current one, in next(): of the one after that
  int turn_ = 0;  ///< tiles begun
};

}  // namespace cadre::sm80
