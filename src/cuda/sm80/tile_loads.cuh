// The loads of one tile: both operands into a ring of stages.
#pragma once

#include <cstdint>

#include "cuda/sm80/arguments.h"
#include "cuda/sm80/operand_loader.cuh"
#include "cuda/sm80/tile_finder.cuh"

namespace cadre::sm80 {

template <typename Traits>
class TileLoads {
 public:
  __device__ __forceinline__ explicit TileLoads(uint32_t stages) : stages_(stages) {}

  /// True when both operands can come 16 bytes at a time; then start() and next(), else
  /// load_block().
  __device__ __forceinline__ static bool vectors(const ProductArguments& args,
                                                 const ProductTile& tile) {
    constexpr uint32_t kBoth = kVectorA | kVectorB;
    return (args.table.entries[tile.group].vector_flags & kBoth) == kBoth &&
           Traits::kAKMajor != args.a_rows_along_k && Traits::kBKMajor == args.b_rows_along_n;
  }

  /// Starts the first kStages - 1 blocks of a tile. All warps have left the stages.
  __device__ __forceinline__ void start(const ProductArguments& args, const ProductTile& tile) {
    begin(args, tile);
    slot_ = 0;
#pragma unroll 1
    for (int i = 0; i < Traits::kStages - 1; ++i) {
      load_a();
      load_b();
    }
  }

  /// Goes on with another tile, right behind the last block of the one before.
  __device__ __forceinline__ void begin(const ProductArguments& args, const ProductTile& tile) {
    a_.start(source_a(args, tile));
    b_.start(source_b(args, tile));
    left_ = args.table.entries[tile.group].k;
    ragged_ = a_.ragged() || b_.ragged();
  }

  __device__ __forceinline__ bool finished() const { return left_ <= 0; }

  /// The next block of A, then of B. One commit for each block of K, past the end too: so the
  /// number of groups under way is always the same.
  __device__ __forceinline__ void load_a() {
    if (left_ <= 0) return;
    const uint32_t stage = stages_ + slot_ * Traits::kStageBytes;
    if (left_ >= Traits::kBlockElements && !ragged_) {
      a_.load_full(stage);
    } else {
      a_.load_part(stage, block_left());
    }
  }
  __device__ __forceinline__ void load_b() {
    if (left_ > 0) {
      const uint32_t stage = stages_ + slot_ * Traits::kStageBytes + Traits::kStageBytesA;
      if (left_ >= Traits::kBlockElements && !ragged_) {
        b_.load_full(stage);
      } else {
        b_.load_part(stage, block_left());
      }
      left_ -= Traits::kBlockElements;
    }
    ptx::cp_async_commit();
    slot_ = slot_ == Traits::kStages - 1 ? 0 : slot_ + 1;
  }

  /// Loads the block at `k_begin` into the first stage, element by element.
  __device__ __forceinline__ void load_block(const ProductArguments& args, const ProductTile& tile,
                                             int64_t k_begin) const {
    const int64_t left = args.table.entries[tile.group].k - k_begin;
    const int k_left =
        left < Traits::kBlockElements ? static_cast<int>(left) : Traits::kBlockElements;
    Traits::LoaderA::load_elements(source_a(args, tile), stages_, k_begin, k_left);
    Traits::LoaderB::load_elements(source_b(args, tile), stages_ + Traits::kStageBytesA, k_begin,
                                   k_left);
  }

 private:
  __device__ __forceinline__ int block_left() const {
    return left_ < Traits::kBlockElements ? static_cast<int>(left_) : Traits::kBlockElements;
  }

  static constexpr auto kElementBytes = static_cast<int64_t>(sizeof(typename Traits::Element));

  __device__ __forceinline__ static TileSource source_a(const ProductArguments& args,
                                                        const ProductTile& tile) {
    const GroupEntry& entry = args.table.entries[tile.group];
    const int64_t row = int64_t{tile.row_tile} * Traits::kTileM;
    const int64_t m_stride = args.a_rows_along_k ? args.a_col_stride : entry.a_row_stride;
    return {.data = entry.a + row * m_stride * kElementBytes,
            .outer_stride = m_stride,
            .k_stride = args.a_rows_along_k ? entry.a_row_stride : args.a_col_stride,
            .extent = static_cast<int>(min(entry.m - row, int64_t{Traits::kTileM}))};
  }

  __device__ __forceinline__ static TileSource source_b(const ProductArguments& args,
                                                        const ProductTile& tile) {
    const GroupEntry& entry = args.table.entries[tile.group];
    const int64_t col = int64_t{tile.col_tile} * Traits::kTileN;
    const int64_t n_stride = args.b_rows_along_n ? entry.b_row_stride : args.b_col_stride;
    return {.data = entry.b + col * n_stride * kElementBytes,
            .outer_stride = n_stride,
            .k_stride = args.b_rows_along_n ? args.b_col_stride : entry.b_row_stride,
            .extent = static_cast<int>(min(entry.n - col, int64_t{Traits::kTileN}))};
  }

  typename Traits::LoaderA a_;
  typename Traits::LoaderB b_;
  int64_t left_ = 0;  ///< elements of K from the next block on
  uint32_t stages_;
  uint32_t slot_ = 0;
  bool ragged_ = false;
};

}  // namespace cadre::sm80
