// Products of 16-bit types without options, on tiles of at most 160x256 outputs, 80x64 a warp. The
// rows of a group are cut evenly (even_rows.cuh); the last columns of a matrix belong to a tile
// that is moved back into it, so that there are no edges but those of rows and of K, and every
// tile's first blocks are loaded during the last two of the tile before.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/sm80/even_epilogue.cuh"
#include "cuda/sm80/even_pipeline.cuh"
#include "cuda/sm80/tile_queue.cuh"
#include "cuda/sm80/zero_rows.cuh"

namespace cadre::sm80 {

/// The turns of a tile in the ring: at least kStages - 1, so that all tiles load ahead alike.
struct EvenTurns {
  static constexpr int kAhead = EvenShape::kStages - 1;
  int full;        ///< blocks whose steps all hold something
  int rest;        ///< turns behind these: the end of K, or nothing
  int rest_steps;  ///< of the first of these

  __device__ __forceinline__ explicit EvenTurns(int64_t depth) {
    const int k = static_cast<int>(depth);
    const int steps = k / 16 + (k % 16 > 0 ? 1 : 0);
    full = steps / 4;
    rest_steps = steps % 4;
    rest = max(full + (rest_steps > 0 ? 1 : 0), kAhead) - full;
  }
  /// Turns that load blocks of the same tile; the others load the next one's.
  __device__ __forceinline__ int of_this_tile() const { return full + rest - kAhead; }
};

template <typename Function>
__device__ __forceinline__ void with_slices(int slices, Function function) {
  static_assert(EvenShape::kSlices == 5);
  if (slices >= 5) return function(std::integral_constant<int, 5>{});
  if (slices == 4) return function(std::integral_constant<int, 4>{});
  if (slices == 3) return function(std::integral_constant<int, 3>{});
  if (slices == 2) return function(std::integral_constant<int, 2>{});
  return function(std::integral_constant<int, 1>{});
}

template <typename T, bool kAKMajor, bool kBKMajor>
__global__ void __launch_bounds__(EvenShape::kThreads, 1)
    even_kernel(const __grid_constant__ ProductArguments args) {
  using Shape = EvenShape;
  // The tiles of a weight gradient cost nearly the same: there a claim costs more than it gains.
  constexpr TileOrder kOrder = kAKMajor ? TileOrder::kClaimed : TileOrder::kFixed;
  extern __shared__ __align__(128) char shared[];
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  char* strips = shared + Shape::kStages * Shape::kStageBytes;
  char* queue_bytes = strips + Shape::kWarps * kStripBytes;
  // Of tile t at t mod 4: written when t - 1 begins, when all warps are past t - 3.
  auto* places = reinterpret_cast<EvenPlace*>(queue_bytes + kTileQueueBytes);
  Ring<Shape> ring{.stages = ptx::shared_address(shared)};
  using Pipeline = EvenPipeline<T, kAKMajor, kBKMajor>;
  EvenLoads<kAKMajor, kBKMajor> loads;
  Pipeline pipeline(warp / 4, warp % 4);

  TileQueue<kOrder> queue(args, reinterpret_cast<TileQueueStorage*>(queue_bytes));
  __syncthreads();
  constexpr bool kMoveBack = !kAKMajor;
  int here = queue.first();  // the tile's number; 0: there is none
  if (here > 0) {
    const QueuedTile tile = queue.tile_at(0, here);
    const EvenPlace place = EvenPlace::of<kMoveBack>(tile);
    if (threadIdx.x == 0) places[0] = place;
    loads.begin(*tile.entry, place);
#pragma unroll 1
    for (uint32_t i = 0; i < Shape::kStages - 1; ++i) {
      loads.load_block(ring.stages + i * Shape::kStageBytes);
      loads.commit();
    }
    ring.slot = Shape::kStages - 1;
    ring.next();
  }
#pragma unroll 1
  while (here > 0) {
    // One warp claims a tile and finds the next one's place, while the others begin with this one's
    // products.
    if (warp == Shape::kWarps - 1) {
      const bool first_lane = threadIdx.x % 32 == 0;
      int claimed = 0;
      if (kOrder == TileOrder::kClaimed && first_lane) claimed = queue.claim();
      if (const int ahead = queue.ahead(); ahead > 0) {
        const int turn = queue.turn() + 1;
        const EvenPlace place = EvenPlace::of<kMoveBack>(queue.tile_at(turn, ahead));
        if (first_lane) places[turn % Shape::kPlaces] = place;
      }
      if (kOrder == TileOrder::kClaimed && first_lane) queue.publish(claimed);
    }
    const int ahead = queue.next();
    const GroupEntry& entry = queue.entry_at(queue.turn() - 1);
    // The meetings of the blocks before the last ones show the place to all warps.
    if (EvenTurns(entry.k).of_this_tile() == 0) __syncthreads();
    typename Pipeline::Sums sums = {};
    // What is known of the tile is found anew where it is needed, rather than kept beside the sums.
    const auto multiply = [&]<int kSlices>(std::integral_constant<int, kSlices>) {
      pipeline.template begin<kSlices>(ring.stage());
      // First the blocks that load this tile, marked by a bit, then those that load the next one.
      constexpr int kOfThisTile = 1 << 30;
      int blocks = EvenTurns(entry.k).of_this_tile() + kOfThisTile;
#pragma unroll 1
      while (true) {
#pragma unroll 1
        for (; (blocks & (kOfThisTile - 1)) > 0; --blocks) {
          pipeline.template block<kSlices>(sums, ring, loads);
        }
        if (blocks == 0) break;
        if (ahead > 0) {
          loads.begin(queue.entry_at(queue.turn()), places[queue.turn() % Shape::kPlaces]);
        }
        const EvenTurns turns(entry.k);
        blocks = turns.full - turns.of_this_tile();
      }
      const EvenTurns turns(entry.k);
#pragma unroll 1
      for (int i = 0; i < turns.rest; ++i) {
        pipeline.template part_block<kSlices>(sums, i == 0 ? turns.rest_steps : 0, ring, loads);
      }
    };
    const EvenPlace& place = places[(queue.turn() - 1) % Shape::kPlaces];
    with_slices(place.slices, multiply);
    store_even_tile<T>(entry, place.row + warp / 4 * 16, place.col + warp % 4 * 64,
                       place.rows - warp / 4 * 16, strips + warp * kStripBytes, sums);
    here = ahead;
  }
  ptx::cp_async_wait_all();
  zero_uncovered_rows(args);
}

}  // namespace cadre::sm80
