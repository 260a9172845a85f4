// The producer thread: fills stage after stage with a tile's operands through the copy engine
// (TMA). A source knows the tiles and where their operands lie; rows that are gathered by index
// would be another source.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/mma/operands.cuh"
#include "cuda/sm90/pipeline/cursor.cuh"
#include "cuda/sm90/schedule/tile.cuh"
#include "cuda/sm90/schedule/tile_ring.cuh"

namespace cadre::sm90 {

// Coordinates in a ragged map (tensor_map.h) of the rows from row + first on: the second dim's
// bound falls on row + rows.
inline constexpr int kRaggedBound = 1 << 30;
struct RaggedRows {
  int bound;
  int end;
  __device__ __forceinline__ RaggedRows(int row, int rows, int first)
      : bound(kRaggedBound - rows + first), end(row + rows) {}
};

// The next tile: for one thread, or the warp whose lanes bring scales.
template <typename Traits, typename Storage>
__device__ __forceinline__ auto tile_of_producer(Storage& shared,
                                                 Cursor<Traits::kRingSlots>& ring) {
  if constexpr (scales_stages(Traits::kPromotion)) {
    return take_tile(shared, ring);
  } else {
    return next_tile(shared, ring);
  }
}

// gmm: the tiles that have products. Past k, n and m the copy engine writes zeros.
template <typename Traits, typename Storage>
class GmmSource {
 public:
  __device__ __forceinline__ GmmSource(Storage& shared, const GmmArguments& args)
      : shared_(shared), args_(args) {}

  // The next tile; false when there is none.
  __device__ __forceinline__ bool next() {
    do {
      tile_ = tile_of_producer<Traits>(shared_, ring_);
      if (tile_.is_end()) return false;
    } while (Tile::kind(tile_.control) == Tile::kZero);
    map_ = &args_.weights_map;
    group_ = tile_.group;
    if (args_.weights_maps != nullptr) {
      map_ = args_.weights_maps + tile_.group;
      group_ = 0;
      if (mapped_group_ != tile_.group) ptx::fence_tensor_map_acquire(map_);
      mapped_group_ = tile_.group;
    }
    return true;
  }

  __device__ __forceinline__ int blocks() const {
    return (args_.k + Traits::kTileK - 1) / Traits::kTileK;
  }
  __device__ __forceinline__ const Tile& tile() const { return tile_; }
  // What the copy engine brings into each stage of the tile.
  __device__ __forceinline__ uint32_t stage_bytes() const {
    return Traits::kBytesA + Tile::width(tile_.control) * kRowBytes;
  }

  // Weights as blocks of 64 features: two with each box of rows of K, one with each box of rows of
  // features. Gates and up parts half a row apart: a block of each.
  __device__ __forceinline__ void load_a(uint32_t to, uint32_t full, int block) const {
    constexpr bool kRowsOfK = Traits::kMajorA == ptx::Major::kK;
    constexpr int kBoxBlocks = kRowsOfK ? 2 : 1;
    const int k = block * Traits::kTileK;
    if constexpr (Traits::kActivation == ActivationForm::kHalves) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        ptx::tma_load_4d(to + part * kBlockBytes, map_, full, ptx::kEvictNormal,
                         kRowsOfK ? k : tile_.feature, kRowsOfK ? tile_.feature : k, part, group_);
      }
    } else {
#pragma unroll
      for (int i = 0; i < Traits::kRowsA / kBlockRows; i += kBoxBlocks) {
        const int feature = tile_.feature * columns_of(Traits::kActivation) + i * kBlockRows;
        ptx::tma_load_3d(to + i * kBlockBytes, map_, full, ptx::kEvictNormal,
                         kRowsOfK ? k : feature, kRowsOfK ? feature : k, group_);
      }
    }
  }

  // Tokens: full boxes, then one box of what is left, so that no byte is read in vain. Boxes may
  // reach past a group's last row: those tokens only feed sums that are never stored.
  __device__ __forceinline__ void load_b(uint32_t to, uint32_t full, int block) const {
    const int k = block * Traits::kTileK;
    const int boxes = Tile::width(tile_.control) / kTokenBox;
    const int rest = Tile::width(tile_.control) % kTokenBox;
    for (int box = 0; box < boxes; ++box) {
      ptx::tma_load_2d(to + box * kTokenBox * kRowBytes, &args_.tokens_map, full, ptx::kEvictNormal,
                       k, tile_.row + box * kTokenBox);
    }
    if (rest > 0) {
      ptx::tma_load_2d(to + boxes * kTokenBox * kRowBytes,
                       &args_.tokens_rest_maps[rest / kTokenStep - 1], full, ptx::kEvictNormal, k,
                       tile_.row + boxes * kTokenBox);
    }
  }

 private:
  Storage& shared_;
  const GmmArguments& args_;
  Cursor<Traits::kRingSlots> ring_;
  Tile tile_{};
  const CUtensorMap* map_ = nullptr;  // of the tile's weights
  int group_ = 0;                     // coordinate in it
  int mapped_group_ = -1;
};

// tgmm: 64 rows of both operands at a time. Rows past the group's end arrive as zeros in both (0 *
// NaN would be NaN).
template <typename Traits, typename Storage>
class TgmmSource {
 public:
  __device__ __forceinline__ TgmmSource(Storage& shared, const TgmmArguments& args)
      : shared_(shared), args_(args) {}

  __device__ __forceinline__ bool next() {
    tile_ = next_tile(shared_, ring_);
    return !tile_.is_end();
  }

  __device__ __forceinline__ int blocks() const {
    return (tile_.rows + Traits::kTileK - 1) / Traits::kTileK;
  }
  __device__ __forceinline__ uint32_t stage_bytes() const {
    return (tile_.atoms_a(args_.k) + tile_.atoms_b()) * kBlockBytes;
  }

  __device__ __forceinline__ void load_a(uint32_t to, uint32_t full, int block) const {
    load<Traits::kBlocks>(args_.lhs_map, tile_.atoms_a(args_.k), tile_.k, to, full, block);
  }
  __device__ __forceinline__ void load_b(uint32_t to, uint32_t full, int block) const {
    load<Traits::kAtomsB>(args_.rhs_map, tile_.atoms_b(), tile_.n, to, full, block);
  }

 private:
  template <int kMost>
  __device__ __forceinline__ void load(const CUtensorMap& map, int atoms, int column, uint32_t to,
                                       uint32_t full, int block) const {
    const RaggedRows rows(tile_.row, tile_.rows, block * Traits::kTileK);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= atoms) break;
      ptx::tma_load_4d(to + i * kBlockBytes, &map, full, ptx::kEvictNormal, column + 64 * i,
                       rows.bound, rows.end, kRaggedBound);
    }
  }

  Storage& shared_;
  const TgmmArguments& args_;
  Cursor<Traits::kRingSlots> ring_;
  TgmmTile tile_{};
};

// grouped_gemm: 64 of what is summed over, of both operands, each in the order in which it is
// stored. Every group has maps of its own, so what lies past its k arrives as zeros in both.
template <typename Traits, typename Storage>
class GroupedSource {
 public:
  __device__ __forceinline__ GroupedSource(Storage& shared, const GroupedArguments& args)
      : shared_(shared), args_(args) {}

  __device__ __forceinline__ bool next() {
    const int mapped = tile_.group;
    tile_ = tile_of_producer<Traits>(shared_, ring_);
    if (tile_.is_end()) return false;
    maps_ = args_.maps + tile_.group;
    if (tile_.group != mapped && tile_.rows > 0) {
      ptx::fence_tensor_map_acquire(&maps_->a);
      ptx::fence_tensor_map_acquire(&maps_->b);
    }
    return true;
  }

  __device__ __forceinline__ int blocks() const {
    return (tile_.rows + Traits::kTileK - 1) / Traits::kTileK;
  }
  __device__ __forceinline__ const GroupedTile& tile() const { return tile_; }
  __device__ __forceinline__ uint32_t stage_bytes() const {
    return (tile_.atoms_a() + tile_.atoms_b()) * kBlockBytes;
  }

  __device__ __forceinline__ void load_a(uint32_t to, uint32_t full, int block) const {
    load<Traits::kAtomsA, Traits::kMajorA>(maps_->a, tile_.atoms_a(), tile_.k, to, full, block);
  }
  __device__ __forceinline__ void load_b(uint32_t to, uint32_t full, int block) const {
    load<Traits::kAtomsB, Traits::kMajorB>(maps_->b, tile_.atoms_b(), tile_.n, to, full, block);
  }

 private:
  // `first`: of out's rows (A) or columns (B).
  template <int kMost, ptx::Major kMajor>
  __device__ __forceinline__ static void load(const CUtensorMap& map, int atoms, int first,
                                              uint32_t to, uint32_t full, int block) {
    const int k = block * Traits::kTileK;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (i >= atoms) break;
      const int at = first + 64 * i;
      const bool along_k = kMajor == ptx::Major::kK;
      ptx::tma_load_2d(to + i * kBlockBytes, &map, full, ptx::kEvictNormal, along_k ? k : at,
                       along_k ? at : k);
    }
  }

  Storage& shared_;
  const GroupedArguments& args_;
  Cursor<Traits::kRingSlots> ring_;
  GroupedTile tile_{.group = -1};
  const GroupedMaps* maps_ = nullptr;
};

template <typename Traits, typename Storage, typename Source>
__device__ __forceinline__ void fill_stages(Storage& shared, Source source) {
  Cursor<Traits::kStages> stage;
  while (source.next()) {
    const int blocks = source.blocks();
    for (int block = 0; block < blocks; ++block) {
      const uint32_t full = ptx::shared_address(&shared.stage_full[stage.slot()]);
      const uint32_t base = ptx::shared_address(shared.stages[stage.slot()]);
      ptx::mbarrier_wait(ptx::shared_address(&shared.stage_empty[stage.slot()]),
                         stage.parity() ^ 1);
      ptx::mbarrier_arrive_expect(full, source.stage_bytes());
      source.load_a(base, full, block);
      source.load_b(base + Traits::kBytesA, full, block);
      stage.advance();
    }
  }
}

// Stages loaded together, and stages that are full or on their way at most. Measured
// (docs/kernels.md): more of either is slower, whatever the shared memory holds.
struct StreamDepth {
  uint32_t burst;
  uint32_t ahead;
};
constexpr StreamDepth stream_depth(ptx::Major weights) {
  return weights == ptx::Major::kK ? StreamDepth{.burst = 2, .ahead = 8}
                                   : StreamDepth{.burst = 3, .ahead = 7};
}

// The same for shapes that are bound by reading weights: several stages at a time, so that memory
// is asked for parts of a row that lie side by side at once. A tile's last burst may be shorter.
template <typename Traits, typename Storage, typename Source>
__device__ __forceinline__ void stream_stages(Storage& shared, Source source) {
  constexpr uint32_t kStages = Traits::kStages;
  constexpr StreamDepth kDepth = stream_depth(Traits::kMajorA);
  // The consumers hand a stage back when they have begun the next one.
  static_assert(kDepth.burst < kDepth.ahead && kDepth.ahead <= kStages);
  uint32_t count = 0;  // stages filled so far
  while (source.next()) {
    const int blocks = source.blocks();
    for (int first = 0; first < blocks; first += static_cast<int>(kDepth.burst)) {
      const int burst = min(static_cast<int>(kDepth.burst), blocks - first);
      for (int i = 0; i < burst; ++i) {
        if (count + i < kDepth.ahead) continue;
        const uint32_t back = count + i - kDepth.ahead;
        ptx::mbarrier_wait(ptx::shared_address(&shared.stage_empty[back % kStages]),
                           back / kStages % 2);
      }
      for (int i = 0; i < burst; ++i) {
        const uint32_t slot = (count + i) % kStages;
        const uint32_t full = ptx::shared_address(&shared.stage_full[slot]);
        ptx::mbarrier_arrive_expect(full, source.stage_bytes());
        source.load_a(ptx::shared_address(shared.stages[slot]), full, first + i);
      }
      for (int i = 0; i < burst; ++i) {
        const uint32_t slot = (count + i) % kStages;
        source.load_b(ptx::shared_address(shared.stages[slot]) + Traits::kBytesA,
                      ptx::shared_address(&shared.stage_full[slot]), first + i);
      }
      count += burst;
    }
  }
}

}  // namespace cadre::sm90
