// The shared memory of a gmm CTA as one struct, and the compile-time shape of its tiles.
#pragma once

#include <cstdint>

#include "cuda/ptx/wgmma.cuh"

namespace cadre::sm90 {

inline constexpr int kTileK = 64;          // one 128-byte swizzled row of 16-bit elements
inline constexpr int kBlockFeatures = 64;  // rows of operand A of one wgmma
inline constexpr int kBlockBytes = kBlockFeatures * kTileK * 2;
inline constexpr int kConsumers = 2;
inline constexpr int kTokenStep = 16;  // widths of token tiles: operand B of wgmma
inline constexpr int kChunkTokens =
    64;  // 16-bit output leaves in chunks of 64 tokens x 64 features
inline constexpr int kChunkBytes = 8192;
inline constexpr int kTokenStepK = 32 >> 4;  // a k16 step along tokens' rows of K, in 16 bytes

// What one instantiation fixes.
template <typename T, ptx::Major kWeights_, typename Shape>
struct GmmTraits : Shape {
  using Element = T;
  static constexpr ptx::Major kWeights = kWeights_;
  static constexpr int kFeatures = Shape::kSharers * Shape::kBlocks * kBlockFeatures;
  static constexpr int kWeightBytes = kFeatures * kTileK * 2;
  static constexpr int kStageBytes = kWeightBytes + Shape::kTokens * kTileK * 2;
  static constexpr int kWeightStep =
      (kWeights == ptx::Major::kK ? 32 : 16 * 128) >> 4;  // a k16 step, in 16 bytes
};

// kSharers: warpgroups that share a tile; kBlocks: blocks of 64 features for each of them; kTokens:
// widest token tile; kDeferredTokens: those whose results may wait in registers beside the next
// tile's accumulators; kTokenBox: rows of one TMA box of tokens; kGeneral: C and fp32 output too.
// Shared memory (227 KB) holds the stages, 3 KB for the rest, and what is left for chunks.
// Both warpgroups work on one tile.
struct SharedShape {
  static constexpr int kSharers = kConsumers;
  static constexpr int kRingSlots = 2;
  static constexpr bool kStreams = false;
};
struct LargeShape
    : SharedShape {  // the fewest bytes into the multiprocessor: 3 x 56 KB, 3 chunks a warpgroup
  static constexpr int kBlocks = 2;
  static constexpr int kTokens = 192;
  static constexpr int kDeferredTokens = 0;
  static constexpr int kTokenBox = 64;
  static constexpr int kStages = 3;
  static constexpr int kChunkBuffers = 3;
  static constexpr bool kGeneral = false;
};
struct GeneralShape : SharedShape {  // 4 x 48 KB, 2 chunks
  static constexpr int kBlocks = 1;
  static constexpr int kTokens = 256;
  static constexpr int kDeferredTokens = 256;
  static constexpr int kTokenBox = 64;
  static constexpr int kStages = 4;
  static constexpr int kChunkBuffers = 2;
  static constexpr bool kGeneral = true;
};
// Few rows a group, bound by reading the weights. kStreams: stream_producer.cuh and
// stream_schedule.cuh take the place of producer.cuh and schedule.cuh.
struct NarrowShape : SharedShape {  // 8 x 24 KB, 2 chunks
  static constexpr int kBlocks = 1;
  static constexpr int kTokens = 64;
  static constexpr int kDeferredTokens = 64;
  static constexpr int kTokenBox = 64;  // one box a stage, whatever the width
  static constexpr int kStages = 8;
  static constexpr int kChunkBuffers = 2;
  static constexpr bool kGeneral = true;
  static constexpr bool kStreams = true;
};

// A consumer thread's sums: fp32, [block][8-token group * 4 + element].
template <typename Traits>
using Accumulators = float[Traits::kBlocks][Traits::kTokens / 2];

// One unit of work as the scheduler hands it to the other roles.
struct Tile {
  enum Kind : uint32_t { kProduct, kZero, kEnd };

  uint32_t
      control;  // width | kind << 16 | reads_c << 24: what a consumer must know first, in one read
  int group;    // local group: index into rhs, alpha, beta and bias
  int row;      // first row of lhs and out
  int group_row;  // the same within the group
  int rows;       // valid rows: more than width - kTokenStep, at most width
  int feature;    // first column of out
  int unused[2];

  // Tokens computed, a multiple of kTokenStep.
  static __device__ __forceinline__ int width(uint32_t control) { return control & 0xffff; }
  static __device__ __forceinline__ Kind kind(uint32_t control) {
    return static_cast<Kind>(control >> 16 & 0xff);
  }
  // beta of the group is not 0.
  static __device__ __forceinline__ bool reads_c(uint32_t control) { return control >> 24 != 0; }
};
static_assert(sizeof(Tile) == 32);

// Where a tile's results go; a consumer's leader keeps it for the tile whose results still wait.
struct OutputPlace {
  int group;
  int row;
  int rows;
  int feature;
};

// What the accumulators and the bias of one token are multiplied with.
struct RowFactor {
  float product;  // row_scale * alpha
  float bias;     // row_scale * bias_scale
};

// Factors of the tile being finished, written by the loader warp and read by both consumers.
template <typename Traits>
struct alignas(16) EpilogueInputs {
  RowFactor rows[Traits::kTokens];
  float bias[Traits::kFeatures];
  float beta;
};

template <typename Traits>
struct GmmStorage {
  alignas(1024) unsigned char stages[Traits::kStages][Traits::kStageBytes];
  alignas(1024) unsigned char chunks[kConsumers][Traits::kChunkBuffers][kChunkBytes];
  alignas(16) Tile ring[Traits::kRingSlots];
  alignas(16) OutputPlace pending[kConsumers][2];  // of this tile and of the one before
  alignas(16) EpilogueInputs<Traits> inputs;
  uint64_t stage_full[Traits::kStages];
  uint64_t stage_empty[Traits::kStages];
  uint64_t ring_full[Traits::kRingSlots];
  uint64_t ring_empty[Traits::kRingSlots];
  uint64_t inputs_full;
  uint64_t inputs_empty;
  uint64_t c_full[kConsumers][Traits::kChunkBuffers];
};

// Position in a circular buffer and the parity of the current round: one register when kSlots is a
// power of two.
template <int kSlots, bool kPowerOfTwo = (kSlots & (kSlots - 1)) == 0>
class Cursor {
 public:
  __device__ __forceinline__ uint32_t slot() const { return count_ % kSlots; }
  __device__ __forceinline__ uint32_t previous_slot() const { return (count_ - 1) % kSlots; }
  __device__ __forceinline__ uint32_t parity() const { return count_ / kSlots % 2; }
  __device__ __forceinline__ void advance() { ++count_; }
  __device__ __forceinline__ void advance_by(int steps) { count_ += steps; }
  __device__ __forceinline__ Cursor next() const {
    Cursor cursor = *this;
    cursor.advance();
    return cursor;
  }

 private:
  uint32_t count_ = 0;
};

template <int kSlots>
class Cursor<kSlots, false> {
 public:
  __device__ __forceinline__ uint32_t slot() const { return slot_; }
  __device__ __forceinline__ uint32_t previous_slot() const {
    return slot_ == 0 ? kSlots - 1 : slot_ - 1;
  }
  __device__ __forceinline__ uint32_t parity() const { return parity_; }
  __device__ __forceinline__ void advance() {
    if (++slot_ == kSlots) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }
  __device__ __forceinline__ void advance_by(int steps) {
    const uint32_t reached = slot_ + steps;
    parity_ ^= reached / kSlots & 1;
    slot_ = reached % kSlots;
  }

 private:
  uint32_t slot_ = 0;
  uint32_t parity_ = 0;
};

}  // namespace cadre::sm90
