// The loads of an even tile (even_kernel.cuh): 16 bytes at a time, no edges but those of K and of
// the tile's rows.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/sm80/even_rows.cuh"
#include "cuda/sm80/operand_loader.cuh"

namespace cadre::sm80 {

/// A stage is seven squares of 64 x 64 elements (64 lines of 128 bytes), three for A and four for
/// B, whose vectors are swizzled. Lines lie along K (K-major), or there is one for each element of
/// K and a square has 64 elements of M or N. A thread brings vector() of every 32nd line. Where K
/// ends both operands are zero.
template <bool kAKMajor, bool kBKMajor>
class EvenLoads {
  using Shape = EvenShape;
  static constexpr int kLines = Shape::kThreads / 8;  ///< that all threads bring together
  static constexpr int kVectorsA = kAKMajor ? Shape::kSlices : 2 * Shape::kSquaresA;
  static constexpr int kVectorsB = Shape::kTileN / kLines;
  static_assert(kLines == Shape::kSliceRows);

 public:
  static constexpr int kVectors = kVectorsA + kVectorsB;

  __device__ __forceinline__ void begin(const GroupEntry& entry, const EvenPlace& place) {
    line_bytes_a_ = static_cast<uint32_t>(entry.a_row_stride) * 2;
    line_bytes_b_ = static_cast<uint32_t>(entry.b_row_stride) * 2;
    a_ = entry.a + (kAKMajor ? lines_on(line_bytes_a_, place.row) : uint64_t(place.row) * 2) +
         vector() * 16 + lines_on(line_bytes_a_, first_line());
    b_ = entry.b + (kBKMajor ? lines_on(line_bytes_b_, place.col) : uint64_t(place.col) * 2) +
         vector() * 16 + lines_on(line_bytes_b_, first_line());
    const auto k = static_cast<int>(entry.k);
    lines_left_ = k - first_line();
    vector_left_ = k - vector() * 8;
    rows_left_ = place.rows - (kAKMajor ? first_line() : vector() * 8);
    if (kAKMajor && vector_left_ <= 0) rows_left_ = 0;
  }

  /// Vector i of the next block, one after the other; behind the last block zeros. The pointers
  /// walk along, so that no product of a stride waits in registers.
  __device__ __forceinline__ void load_vector(uint32_t stage, int i) {
    const uint32_t place = stage + vector_offset<true, 0, 128>(first_line(), vector());
    if (i < kVectorsA) {
      load_vector_a(place, i);
    } else {
      load_vector_b(place + Shape::kSquaresA * Shape::kSquareBytes, i - kVectorsA);
    }
  }

  __device__ __forceinline__ void load_block(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) load_vector(stage, i);
  }

  /// Done with a block.
  __device__ __forceinline__ void commit() {
    if constexpr (kAKMajor) a_ -= lines_on(line_bytes_a_, kVectorsA * kLines) - 128;
    if constexpr (kBKMajor) b_ -= lines_on(line_bytes_b_, kVectorsB * kLines) - 128;
    if constexpr (!kBKMajor) lines_left_ -= Shape::kBlockElements;
    if constexpr (kAKMajor) {
      vector_left_ -= Shape::kBlockElements;
      if (vector_left_ <= 0) rows_left_ = 0;
    }
    ptx::cp_async_commit();
  }

 private:
  __device__ __forceinline__ static int first_line() { return static_cast<int>(threadIdx.x) / 8; }
  __device__ __forceinline__ static int vector() { return static_cast<int>(threadIdx.x) % 8; }
  __device__ __forceinline__ static uint64_t lines_on(uint32_t line_bytes, int lines) {
    return uint64_t{line_bytes} * static_cast<uint32_t>(lines);
  }

  /// K-major: 32 of the tile's rows. Otherwise lines for 32 elements of K, square after square,
  /// then the next 32.
  __device__ __forceinline__ void load_vector_a(uint32_t place, int i) {
    if constexpr (kAKMajor) {
      ptx::cp_async_16_below(place + i * kLines * 128, a_, i * kLines, rows_left_);
      ptx::step_forward(a_, line_bytes_a_, kLines);
    } else {
      const int line = i / Shape::kSquaresA * kLines;
      const int square = i % Shape::kSquaresA;
      ptx::cp_async_16_below(place + square * Shape::kSquareBytes + line * 128, a_ + square * 128,
                             line, lines_left_, square * 64, rows_left_);
      if (square == Shape::kSquaresA - 1) ptx::step_forward(a_, line_bytes_a_, kLines);
    }
  }

  __device__ __forceinline__ void load_vector_b(uint32_t place, int i) {
    if constexpr (kBKMajor) {
      ptx::cp_async_16_below(place + i * kLines * 128, b_, 0, vector_left_);
      ptx::step_forward(b_, line_bytes_b_, kLines);
    } else {
      constexpr int kSquaresB = Shape::kSquares - Shape::kSquaresA;
      const int line = i / kSquaresB * kLines;
      const int square = i % kSquaresB;
      ptx::cp_async_16_below(place + square * Shape::kSquareBytes + line * 128, b_ + square * 128,
                             line, lines_left_);
      if (square == kSquaresB - 1) ptx::step_forward(b_, line_bytes_b_, kLines);
    }
  }

  const char* a_ = nullptr;
  const char* b_ = nullptr;
  uint32_t line_bytes_a_ = 0;
  uint32_t line_bytes_b_ = 0;
  int lines_left_ = 0;   ///< of K from the thread's first line of the next block on
  int vector_left_ = 0;  ///< of K from the thread's vector of the next block on
  int rows_left_ = 0;    ///< of A from the thread's first line, or vector, on; K-major: 0 behind K
};

}  // namespace cadre::sm80
