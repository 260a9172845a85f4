// The loads of a tall tile (tall_kernel.cuh): both operands have their rows along K, and the tile
// lies wholly inside its matrices.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cp_async.cuh"
#include "cuda/sm80/group_entry.h"
#include "cuda/sm80/mma_shape.h"
#include "cuda/sm80/operand_loader.cuh"

namespace cadre::sm80 {

/// A stage is seven panels, three of A and four of B: a line of 64 elements for each of the block's
/// 64 elements of K, whose chunks are swizzled. A thread brings chunk() of lines first_line() and
/// first_line() + 32 of each. Where K ends both operands are zero.
class TallLoads {
  using Shape = TallShape;

 public:
  static constexpr int kChunks = 2 * Shape::kPanels;

  /// (row, col) is the tile's place in D.
  __device__ __forceinline__ void begin(const GroupEntry& entry, int64_t row, int64_t col) {
    line_bytes_a_ = static_cast<uint32_t>(entry.a_row_stride) * 2;
    line_bytes_b_ = static_cast<uint32_t>(entry.b_row_stride) * 2;
    const auto line = static_cast<uint32_t>(first_line());
    a_ = entry.a + row * 2 + chunk() * 16 + uint64_t{line_bytes_a_} * line;
    b_ = entry.b + col * 2 + chunk() * 16 + uint64_t{line_bytes_b_} * line;
    lines_left_ = static_cast<int>(entry.k) - first_line();
  }

  /// Chunk i of the next block, one after the other; behind the last block zeros. The pointers walk
  /// along, so that no product of a stride waits in registers.
  __device__ __forceinline__ void load_chunk(uint32_t stage, int i) {
    constexpr int kChunksA = 2 * Shape::kPanelsA;
    const uint32_t place = stage + chunk_offset<true, 0, 128>(first_line(), chunk());
    if (i < kChunksA) {
      load_operand<Shape::kPanelsA>(place, i, a_, line_bytes_a_);
    } else {
      load_operand<Shape::kPanels - Shape::kPanelsA>(place + Shape::kPanelsA * Shape::kPanelBytes,
                                                     i - kChunksA, b_, line_bytes_b_);
    }
  }

  __device__ __forceinline__ void load_block(uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) load_chunk(stage, i);
  }

  /// Done with a block.
  __device__ __forceinline__ void commit() {
    lines_left_ -= Shape::kBlockElements;
    ptx::cp_async_commit();
  }

 private:
  static constexpr int kLines = Shape::kThreads / 8;  ///< that all threads bring together

  __device__ __forceinline__ static int first_line() { return static_cast<int>(threadIdx.x) / 8; }
  __device__ __forceinline__ static int chunk() { return static_cast<int>(threadIdx.x) % 8; }

  /// 32 lines of all panels of an operand, then the other 32.
  template <int kPanelsOfOperand>
  __device__ __forceinline__ void load_operand(uint32_t place, int i, const char*& data,
                                               uint32_t line_bytes) const {
    const int line = i / kPanelsOfOperand * kLines;
    const int panel = i % kPanelsOfOperand;
    ptx::cp_async_16_below(place + panel * Shape::kPanelBytes + line * 128, data + panel * 128,
                           line, lines_left_);
    if (panel == kPanelsOfOperand - 1) ptx::step_forward(data, line_bytes, kLines);
  }

  const char* a_ = nullptr;
  const char* b_ = nullptr;
  uint32_t line_bytes_a_ = 0;
  uint32_t line_bytes_b_ = 0;
  int lines_left_ = 0;  ///< of K from the thread's first line of the next block on
};

}  // namespace cadre::sm80
