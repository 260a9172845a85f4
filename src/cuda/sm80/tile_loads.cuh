// The loads of one tile: both operands, block of K after block of K.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm80/arguments.h"
#include "cuda/sm80/indexed_lines.cuh"
#include "cuda/sm80/operand_loader.cuh"
#include "cuda/sm80/tile_queue.cuh"

namespace cadre::sm80 {

template <typename Traits>
class TileLoads {
 public:
  using LoaderA = typename Traits::LoaderA;
  using LoaderB = typename Traits::LoaderB;
  /// Vectors of a block, of A and then of B, that one thread brings.
  static constexpr int kVectors = LoaderA::kVectors + LoaderB::kVectors;

  __device__ __forceinline__ explicit TileLoads(const ProductArguments& args) : args_(args) {}

  /// True when both operands can come 16 bytes at a time; otherwise load_elements(). K is counted
  /// in 32 bits here: a longer one has no vector flags (prepare_kernel.cu).
  __device__ __forceinline__ static bool vectors(const ProductArguments& args,
                                                 const QueuedTile& tile) {
    constexpr uint32_t kBoth = kVectorA | kVectorB;
    if (Traits::kByIndex == ByIndex::kRowsAlongK && !Traits::kIndexedLines) return false;
    return (tile.entry->vector_flags & kBoth) == kBoth && Traits::kAKMajor != args.a_rows_along_k &&
           Traits::kBKMajor == args.b_rows_along_n;
  }

  /// True when 16 bytes lie across the end of the tile or of K: then load_block() alone, never
  /// load_vector().
  __device__ __forceinline__ static bool ragged(const ProductArguments& args,
                                                const QueuedTile& tile) {
    const int64_t k = tile.entry->k;
    return LoaderA::ragged(source_a(args, tile).extent, k) ||
           LoaderB::ragged(source_b(args, tile).extent, k);
  }

  __device__ __forceinline__ void begin(const ProductArguments& args, const QueuedTile& tile) {
    if constexpr (Traits::kByIndex == ByIndex::kRowsOfA) {
      a_.start(source_a(args, tile), rows_a(args, tile));
    } else {
      a_.start(source_a(args, tile));
    }
    b_.start(source_b(args, tile));
    left_ = static_cast<int>(tile.entry->k);
    if constexpr (Traits::kIndexedLines) rows_.start(args, tile.entry->row_begin, left_);
    ragged_ = ragged(args, tile);
  }

  /// Prepares load_vector for the next block: behind the last one it brings zeros.
  __device__ __forceinline__ void aim(uint32_t stage) {
    place_a_ = stage + LoaderA::place();
    place_b_ = stage + Traits::kStageBytesA + LoaderB::place();
    lines_a_ = a_.lines_left(block_left());
    lines_b_ = b_.lines_left(block_left());
  }

  __device__ __forceinline__ void load_vector(int i) const {
    if (i < LoaderA::kVectors) {
      if constexpr (Traits::kIndexedLines) {
        a_.load_vector(place_a_, i, lines_a_, rows_.of_a(i));
      } else {
        a_.load_vector(place_a_, i, lines_a_);
      }
    } else {
      const int of_b = i - LoaderA::kVectors;
      if constexpr (Traits::kIndexedLines) {
        b_.load_vector(place_b_, of_b, lines_b_, rows_.of_b(of_b));
      } else {
        b_.load_vector(place_b_, of_b, lines_b_);
      }
    }
  }

  /// Done with a block. One commit for each, past the end too: so the number of groups under way
  /// is always the same.
  __device__ __forceinline__ void commit() {
    a_.advance();
    b_.advance();
    left_ -= Traits::kBlockElements;
    if constexpr (Traits::kIndexedLines) rows_.next(args_, left_ - Traits::kBlockElements);
    ptx::cp_async_commit();
  }

  /// All of the next block at once, of any tile whose operands are vectors().
  __device__ __forceinline__ void load_block(uint32_t stage) {
    if (left_ <= 0) return;
    if (!ragged_) {
      aim(stage);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) load_vector(i);
      return;
    }
    if constexpr (Traits::kIndexedLines) {
      const uint32_t place_a = stage + LoaderA::place();
      const uint32_t place_b = stage + Traits::kStageBytesA + LoaderB::place();
#pragma unroll 1
      for (int i = 0; i < LoaderA::kVectors; ++i) a_.load_part(place_a, i, rows_.of_a(i));
#pragma unroll 1
      for (int i = 0; i < LoaderB::kVectors; ++i) b_.load_part(place_b, i, rows_.of_b(i));
    } else {
      a_.load_part(stage + LoaderA::place(), block_left());
      b_.load_part(stage + Traits::kStageBytesA + LoaderB::place(), block_left());
    }
  }

  /// Loads the block at `k_begin`, element by element.
  __device__ __forceinline__ static void load_elements(const ProductArguments& args,
                                                       const QueuedTile& tile, uint32_t stage,
                                                       int64_t k_begin) {
    const int k_left = clamped(tile.entry->k - k_begin);
    const uint32_t stage_b = stage + Traits::kStageBytesA;
    if constexpr (Traits::kByIndex == ByIndex::kRowsAlongK) {
      const int64_t begin = tile.entry->row_begin;
      LoaderA::load_elements_of({args.a_index, begin}, source_a(args, tile), stage, k_begin,
                                k_left);
      LoaderB::load_elements_of({args.b_index, begin}, source_b(args, tile), stage_b, k_begin,
                                k_left);
      return;
    } else if constexpr (Traits::kByIndex == ByIndex::kRowsOfA) {
      LoaderA::load_elements(source_a(args, tile), rows_a(args, tile), stage, k_begin, k_left);
    } else {
      LoaderA::load_elements(source_a(args, tile), stage, k_begin, k_left);
    }
    LoaderB::load_elements(source_b(args, tile), stage_b, k_begin, k_left);
  }

 private:
  __device__ __forceinline__ static int clamped(int64_t left) {
    return left < Traits::kBlockElements ? static_cast<int>(left) : Traits::kBlockElements;
  }
  __device__ __forceinline__ int block_left() const { return min(left_, Traits::kBlockElements); }

  static constexpr auto kElementBytes = static_cast<int64_t>(sizeof(typename Traits::Element));

  __device__ __forceinline__ static TileSource source_a(const ProductArguments& args,
                                                        const QueuedTile& tile) {
    const GroupEntry& entry = *tile.entry;
    const int64_t row = int64_t{tile.row_tile} * Traits::kTileM;
    const int64_t m_stride = args.a_rows_along_k ? args.a_col_stride : entry.a_row_stride;
    constexpr bool kFirstRow = Traits::kByIndex == ByIndex::kRowsOfA;  // of the tensor
    return {.data = entry.a + (kFirstRow ? 0 : row * m_stride * kElementBytes),
            .outer_stride = m_stride,
            .k_stride = args.a_rows_along_k ? entry.a_row_stride : args.a_col_stride,
            .extent = static_cast<int>(min(entry.m - row, int64_t{Traits::kTileM}))};
  }

  __device__ __forceinline__ static IndexedRows rows_a(const ProductArguments& args,
                                                       const QueuedTile& tile) {
    return {args.a_index, tile.entry->row_begin + int64_t{tile.row_tile} * Traits::kTileM};
  }

  __device__ __forceinline__ static TileSource source_b(const ProductArguments& args,
                                                        const QueuedTile& tile) {
    const GroupEntry& entry = *tile.entry;
    const int64_t col = int64_t{tile.col_tile} * Traits::kTileN;
    const int64_t n_stride = args.b_rows_along_n ? entry.b_row_stride : args.b_col_stride;
    return {.data = entry.b + col * n_stride * kElementBytes,
            .outer_stride = n_stride,
            .k_stride = args.b_rows_along_n ? args.b_col_stride : entry.b_row_stride,
            .extent = static_cast<int>(min(entry.n - col, int64_t{Traits::kTileN}))};
  }

  struct NoRows {};
  using Rows = std::conditional_t<Traits::kIndexedLines, typename Traits::Lines, NoRows>;

  const ProductArguments& args_;
  LoaderA a_;
  LoaderB b_;
  Rows rows_;
  int left_ = 0;  ///< elements of K from the next block on; negative behind the end
  bool ragged_ = false;
  uint32_t place_a_ = 0;
  uint32_t place_b_ = 0;
  int lines_a_ = 0;
  int lines_b_ = 0;
};

}  // namespace cadre::sm80
