// The compile-time shape of a tgmm instantiation, the shared memory of its CTA as one struct, and
// the tile that the roles hand to each other.
#pragma once

#include <cstdint>

namespace cadre::sm90 {

inline constexpr int kTgmmTileK = 128;        // columns of lhs, rows of out: operand A of wgmma
inline constexpr int kTgmmBlockRows = 64;     // rows of lhs and rhs in a stage: what is summed over
inline constexpr int kTgmmAtomBytes = 8192;   // 64 rows x 64 columns of 16 bits: one TMA box
inline constexpr int kTgmmChunkBytes = 8192;  // 64 rows x 128 bytes of out: one TMA box
inline constexpr int kTgmmRingSlots = 3;      // from the tile that is claimed to the one stored
inline constexpr int kTgmmThreads = 384;      // one warpgroup that feeds, two that multiply

// What one instantiation fixes. Each consumer warpgroup owns every second tile of 128 x kTileN and
// stores it while the other multiplies.
template <typename T, int kTileN_, int kStages_, int kChunks_, bool kWithC_>
struct TgmmTraits {
  using Element = T;
  static constexpr int kTileN = kTileN_;
  static constexpr int kStages = kStages_;
  static constexpr int kChunks = kChunks_;         // buffers on the way out
  static constexpr bool kWithC = kWithC_;          // C comes in through the same buffers
  static constexpr int kHalves = kTgmmTileK / 64;  // wgmma takes 64 rows of A
  static constexpr int kAtomsB = kTileN / 64;
  static constexpr int kBytesA = kHalves * kTgmmAtomBytes;
  static constexpr int kStageBytes = (kHalves + kAtomsB) * kTgmmAtomBytes;
};

// One unit of work as the scheduler hands it out: everything that depends on the group.
struct alignas(16) TgmmTile {
  int row;                // first row of lhs and rhs; negative: no more tiles
  int rows;               // 0 for an empty group
  int k;                  // first column of lhs, row of out
  int n;                  // first column of rhs and out
  int out_low, out_high;  // coordinates of the group's matrix in the map of out
  int c_low, c_high;
  float alpha;
  float beta;
  int columns;  // of rhs and out, a multiple of 64: at most kTileN
  int unused;

  __device__ __forceinline__ bool is_end() const { return row < 0; }
};
static_assert(sizeof(TgmmTile) == 48);

template <typename Traits>
struct TgmmStorage {
  alignas(1024) unsigned char stages[Traits::kStages][Traits::kStageBytes];
  alignas(1024) unsigned char chunks[Traits::kChunks][kTgmmChunkBytes];
  TgmmTile ring[kTgmmRingSlots];
  uint64_t stage_full[Traits::kStages];
  uint64_t stage_empty[Traits::kStages];
  uint64_t ring_full[kTgmmRingSlots];
  uint64_t ring_empty[kTgmmRingSlots];
  uint64_t chunk_empty[Traits::kChunks];   // the copy engine has read it
  uint64_t chunk_loaded[Traits::kChunks];  // kWithC: it holds C
  uint64_t chunk_full[Traits::kChunks];    // it holds a part of out
  uint64_t multiply_turn[2];               // warpgroup i may issue products
  uint64_t store_turn[2];                  // warpgroup i may fill chunks
};

// Position in a circular buffer of kSlots with the parity of the current round.
template <int kSlots>
struct TgmmCursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot == kSlots) {
      slot = 0;
      parity ^= 1;
    }
  }

  __device__ __forceinline__ void advance_by(int steps) {
    const int reached = slot + steps;
    parity ^= static_cast<uint32_t>(reached / kSlots) & 1;
    slot = reached % kSlots;
  }
};

__device__ __forceinline__ int tgmm_blocks(const TgmmTile& tile) {
  return (tile.rows + kTgmmBlockRows - 1) / kTgmmBlockRows;
}

// 64-wide atoms of a tile's operands: at the edge of out a tile is narrower.
struct TgmmExtent {
  int atoms_a;  // 1 or 2
  int atoms_b;  // 1 to kTileN / 64

  __device__ __forceinline__ TgmmExtent(const TgmmTile& tile, int k)
      : atoms_a(min(kTgmmTileK / 64, (k - tile.k + 63) / 64)), atoms_b(tile.columns / 64) {}
};

}  // namespace cadre::sm90
