// The weight gradient in 16 bits, without options, on tiles of 192x256 outputs, 96x64 a warp: a
// fifth fewer bytes out of shared memory for each product than mma_kernel.cuh's 64x64. The last
// tiles of a matrix are moved back into it, so that there are no edges but that of K, and every
// tile's first blocks are loaded during the last two of the tile before.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/sm80/tall_epilogue.cuh"
#include "cuda/sm80/tall_pipeline.cuh"
#include "cuda/sm80/tile_queue.cuh"

namespace cadre::sm80 {

/// The turns of a tile in the ring: at least kStages - 1, so that all tiles load ahead alike.
struct TallTurns {
  static constexpr int kAhead = TallShape::kStages - 1;
  int full;        ///< blocks whose steps all hold something
  int rest;        ///< turns behind these: the end of K, or nothing
  int rest_steps;  ///< of the first of these

  __device__ __forceinline__ explicit TallTurns(int64_t depth) {
    const int k = static_cast<int>(depth);
    const int steps = k / 16 + (k % 16 > 0 ? 1 : 0);
    full = steps / 4;
    rest_steps = steps % 4;
    rest = max(full + (rest_steps > 0 ? 1 : 0), kAhead) - full;
  }
  /// Turns that load blocks of the same tile; the others load the next one's.
  __device__ __forceinline__ int of_this_tile() const { return full + rest - kAhead; }
};

template <typename T>
__global__ void __launch_bounds__(TallShape::kThreads, 1)
    tall_kernel(const __grid_constant__ ProductArguments args) {
  using Shape = TallShape;
  extern __shared__ __align__(128) char shared[];
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  char* strips = shared + Shape::kStages * Shape::kStageBytes;
  char* queue_bytes = strips + Shape::kWarps * kStripBytes;
  Ring<Shape> ring{.stages = ptx::shared_address(shared)};
  TallLoads loads;
  TallPipeline<T> pipeline(warp / 4, warp % 4);

  TileQueue queue(args, reinterpret_cast<TileQueueStorage*>(queue_bytes));
  __syncthreads();
  const auto row_of = [](const QueuedTile& tile) {
    return min(int64_t{tile.row_tile} * Shape::kTileM, tile.entry->m - Shape::kTileM);
  };
  const auto col_of = [](const QueuedTile& tile) {
    return min(int64_t{tile.col_tile} * Shape::kTileN, tile.entry->n - Shape::kTileN);
  };
  int here = queue.first();  // the tile's number; 0: there is none
  if (here > 0) {
    const QueuedTile tile = queue.tile_at(0, here);
    loads.begin(*tile.entry, row_of(tile), col_of(tile));
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
    const int ahead = queue.next();
    const GroupEntry& entry = *queue.tile_at(queue.turn() - 1, here).entry;
    typename TallPipeline<T>::Sums sums = {};
    pipeline.begin(ring.stage());
    // What is known of the tile is found anew where it is needed, rather than kept beside the sums.
    // First the blocks that load this tile, marked by a bit, then those that load the next one.
    constexpr int kOfThisTile = 1 << 30;
    int blocks = TallTurns(entry.k).of_this_tile() + kOfThisTile;
#pragma unroll 1
    while (true) {
#pragma unroll 1
      for (; (blocks & (kOfThisTile - 1)) > 0; --blocks) {
        pipeline.block(sums, ring, loads);
      }
      if (blocks == 0) break;
      if (ahead > 0) {
        const QueuedTile next = queue.tile_at(queue.turn(), ahead);
        loads.begin(*next.entry, row_of(next), col_of(next));
      }
      const TallTurns turns(entry.k);
      blocks = turns.full - turns.of_this_tile();
    }
    const TallTurns turns(entry.k);
#pragma unroll 1
    for (int i = 0; i < turns.rest; ++i) {
      pipeline.part_block(sums, i == 0 ? turns.rest_steps : 0, ring, loads);
    }
    const QueuedTile tile = queue.tile_at(queue.turn() - 1, here);
    store_tall_tile<T>(entry, row_of(tile) + warp / 4 * 16, col_of(tile) + warp % 4 * 64,
                       strips + warp * kStripBytes, sums);
    here = ahead;
  }
  ptx::cp_async_wait_all();
}

}  // namespace cadre::sm80
