// The loop over a tile's blocks of K. Stages form a ring; while a block is multiplied, the stage
// before it, which all warps have left, takes the block kStages - 1 further on: of this tile, or of
// the next one near this tile's end, so that the loads never pause.
#pragma once

#include <cstdint>

#include "cuda/sm80/fragments.cuh"
#include "cuda/sm80/tile_loads.cuh"

namespace cadre::sm80 {

/// The place in the ring. Between blocks this holds: the block at `slot` has arrived for all warps,
/// and the stage before it is free.
template <typename Traits>
struct Ring {
  uint32_t stages;  ///< shared address
  uint32_t slot = 0;

  __device__ __forceinline__ uint32_t stage() const { return stages + slot * Traits::kStageBytes; }
  __device__ __forceinline__ uint32_t free_stage() const {
    return stages + (slot == 0 ? Traits::kStages - 1 : slot - 1) * Traits::kStageBytes;
  }
  /// Every thread has committed the loads of this block's turn.
  __device__ __forceinline__ void next() {
    ptx::cp_async_wait<Traits::kStages - 2>();
    __syncthreads();
    slot = slot == Traits::kStages - 1 ? 0 : slot + 1;
  }
};

/// Starts the first blocks of a tile when none of them is under way yet; ring.next() follows.
template <typename Traits>
__device__ __forceinline__ void fill_ring(Ring<Traits>& ring, TileLoads<Traits>& loads,
                                          const ProductArguments& args, const QueuedTile& tile) {
  loads.begin(args, tile);
#pragma unroll 1
  for (uint32_t i = 0; i < Traits::kStages - 1; ++i) {
    loads.load_block(ring.stages + i * Traits::kStageBytes);
    loads.commit();
  }
  ring.slot = Traits::kStages - 1;
}

/// A whole block, without a branch: the products of a step stand between the ldmatrix of the step
/// after it and the loads of the block to come, so that neither delays them. On entry and exit f[0]
/// holds the first step of the block at ring.slot, and the loads are aimed at the free stage.
template <typename Traits>
__device__ __forceinline__ void pipelined_block(typename Traits::Acc (&acc)[4][8][4],
                                                Fragments (&f)[2],
                                                const FragmentPlace<Traits>& place,
                                                Ring<Traits>& ring, TileLoads<Traits>& loads) {
  constexpr int kLast = Traits::kSteps - 1;
  constexpr int kVectors = TileLoads<Traits>::kVectors;
  constexpr int kBatch = 4;  // vectors that are loaded together, between so many products:
  constexpr int kBatchProducts = kLast * kProducts / ((kVectors + kBatch - 1) / kBatch);
  static_assert(Traits::kSteps % 2 == 0, "f[0] must be free for the next block");
#pragma unroll
  for (int step = 0; step <= kLast; ++step) {
    if (step == kLast) {
      loads.commit();
      ring.next();
      loads.aim(ring.free_stage());
    }
    const uint32_t stage = ring.stage();
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      if (i % 4 == 0) place.load_one(f[(step + 1) % 2], stage, (step + 1) % Traits::kSteps, i / 4);
      if (step < kLast) {
        // Some at a time: behind ldmatrix the compiler must let a few slots pass before each batch.
        const int at = step * kProducts + i;
        if (at % kBatchProducts == kBatchProducts / 2) {
#pragma unroll
          for (int j = 0; j < kBatch; ++j) {
            const int vector = at / kBatchProducts * kBatch + j;
            if (vector < kVectors) loads.load_vector(vector);
          }
        }
      }
      multiply_one<Traits>(acc, f[step % 2], i);
    }
  }
}

/// Any block, step by step: the last one of a K that isn't a multiple of a block, tiles with ragged
/// edges, and warps that have nothing to multiply (`steps` = 0). Steps that hold nothing are left
/// out: adding zeros would turn -0 into 0.
template <typename Traits>
__device__ __forceinline__ void plain_block(typename Traits::Acc (&acc)[4][8][4], int steps,
                                            const FragmentPlace<Traits>& place, Ring<Traits>& ring,
                                            TileLoads<Traits>& loads) {
  loads.load_block(ring.free_stage());
  loads.commit();
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    Fragments f;
    place.load(f, ring.stage(), step);
    multiply<Traits>(acc, f);
  }
  ring.next();
}

/// What the loop knows of a tile.
struct TileBlocks {
  int blocks;  ///< of K
  int full;    ///< of these, those whose steps all hold something, in a tile without ragged edges
  int last_steps;

  template <typename Traits>
  __device__ __forceinline__ static TileBlocks of(const ProductArguments& args,
                                                  const QueuedTile& tile) {
    const auto k = static_cast<int>(tile.entry->k);
    const int whole = k / Traits::kBlockElements;
    const int rest = k % Traits::kBlockElements;
    const int rest_steps = (rest + Traits::kStepElements - 1) / Traits::kStepElements;
    return {.blocks = whole + (rest > 0 ? 1 : 0),
            .full = TileLoads<Traits>::ragged(args, tile) ? 0 : whole + rest_steps / Traits::kSteps,
            .last_steps = rest > 0 ? rest_steps : Traits::kSteps};
  }

  /// The ring can run on into or out of this tile: it fills it, and its vectors are all alike.
  template <typename Traits>
  __device__ __forceinline__ bool fills_ring() const {
    return blocks >= Traits::kStages - 1 && full >= blocks - 1;
  }
};

/// Warps whose outputs exist. All warps of a block must meet at the same barrier, so tiles that
/// leave some of them idle aren't pipelined.
struct ActiveWarps {
  bool all;
  bool mine;
};

/// All blocks of K of one tile, whose first kStages - 1 are loaded or under way; `begin_next` aims
/// the loads at the next tile (or does nothing, and they end).
template <typename Traits, typename BeginNext>
__device__ __forceinline__ void multiply_tile(typename Traits::Acc (&acc)[4][8][4],
                                              const ProductArguments& args, const QueuedTile& tile,
                                              const ActiveWarps& active,
                                              const FragmentPlace<Traits>& place,
                                              Ring<Traits>& ring, TileLoads<Traits>& loads,
                                              BeginNext begin_next) {
  bool pipelined = false;
  {
    const TileBlocks counts = TileBlocks::of<Traits>(args, tile);
    int own = max(0, counts.blocks - (Traits::kStages - 1));  // turns that load this tile
    pipelined = active.all && counts.full > own;
    if (pipelined) {
      Fragments f[2];
      place.load(f[0], ring.stage(), 0);
      int others = counts.full - own;  // turns that load the next one
#pragma unroll 1
      for (int part = 0; part < 2; ++part) {
        loads.aim(ring.free_stage());
#pragma unroll 1
        for (; own > 0; --own) pipelined_block<Traits>(acc, f, place, ring, loads);
        if (part == 0) begin_next();
        own = others;
      }
    }
  }
  // Counted again rather than kept beside the accumulators.
  const TileBlocks counts = TileBlocks::of<Traits>(args, tile);
#pragma unroll 1
  for (int done = pipelined ? counts.full : 0; done < counts.blocks; ++done) {
    if (done == max(0, counts.blocks - (Traits::kStages - 1))) begin_next();
    const int steps = done == counts.blocks - 1 ? counts.last_steps : Traits::kSteps;
    plain_block<Traits>(acc, active.mine ? steps : 0, place, ring, loads);
  }
}

}  // namespace cadre::sm80
