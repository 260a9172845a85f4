// Shapes whose warpgroups take turns: each owns every second tile, and finishes it while the other
// one multiplies. Their shared memory as one struct.
#pragma once

#include <cstdint>

#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/gmm_storage.cuh"

namespace cadre::sm90 {

// 128 features x 192 tokens, all of it one warpgroup's. Stages of 40 KB and chunks share 27 or 28 x
// 8 KB. Without C a fifth stage is worth more than further chunks: the copy engine reads one while
// the next is written. With C most chunks are on their way in.
struct TurnShape {
  static constexpr int kSharers = 1;
  static constexpr int kBlocks = 2;
  static constexpr int kTokens = 192;
  static constexpr int kTokenBox = 64;
  static constexpr int kRingSlots = 4;  // from the tile that is claimed to the one stored
  static constexpr int kStages = 5;
  static constexpr int kChunks = 3;
  static constexpr int kInputs = 1;  // tiles whose factors are there
  static constexpr bool kWithC = false;
};
struct TurnShapeWithC : TurnShape {
  static constexpr int kStages = 4;
  static constexpr int kChunks = 7;
  static constexpr int kInputs = 2;  // so that the next tile's C doesn't wait for this one's end
  static constexpr bool kWithC = true;
};

template <typename Traits>
struct TurnStorage {
  alignas(1024) unsigned char stages[Traits::kStages][Traits::kStageBytes];
  alignas(1024) unsigned char chunks[Traits::kChunks][kChunkBytes];
  alignas(16) Tile ring[Traits::kRingSlots];
  alignas(16) EpilogueInputs<Traits> inputs[Traits::kInputs];
  uint64_t stage_full[Traits::kStages];
  uint64_t stage_empty[Traits::kStages];
  uint64_t ring_full[Traits::kRingSlots];
  uint64_t ring_empty[Traits::kRingSlots];
  uint64_t inputs_full[Traits::kInputs];
  uint64_t inputs_empty[Traits::kInputs];
  uint64_t chunk_empty[Traits::kChunks];   // the copy engine has read it
  uint64_t chunk_loaded[Traits::kChunks];  // kWithC: it holds C
  uint64_t chunk_full[Traits::kChunks];    // it holds a part of out
  uint64_t multiply_turn[kConsumers];      // warpgroup i may issue products
  uint64_t store_turn[kConsumers];         // warpgroup i may fill chunks
};

// Where a tile's results go.
__device__ __forceinline__ OutputPlace turn_place(const GmmArguments& args, const Tile& tile) {
  return {.group = tile.group,
          .row = args.out_maps != nullptr ? tile.group_row : tile.row,
          .rows = tile.rows,
          .feature = tile.feature};
}

// The chunks of a tile on their way out (and C's in), in one ring: chunk c holds block c % 2 of 64
// features and, from c / 2 * tokens on, 64 tokens of 16 bits or 32 of fp32.
struct TurnChunks {
  int tokens;  // of a chunk

  __device__ __forceinline__ explicit TurnChunks(const GmmArguments& args)
      : tokens(args.epilogue.out == ElementKind::kF32 ? kChunkTokens / 2 : kChunkTokens) {}

  __device__ __forceinline__ int count(uint32_t control) const {
    return (Tile::width(control) + tokens - 1) / tokens * 2;
  }
};

}  // namespace cadre::sm90
