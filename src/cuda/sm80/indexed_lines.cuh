// Rows along K by index (tgmm): which rows of memory the lines of a block of K are. The loads of a
// block need all of them before its first byte, so they are read while the block before it is
// loaded.
#pragma once

#include <cstdint>

#include "cuda/sm80/indexed_rows.cuh"
#include "cuda/sm80/operand_loader.cuh"

namespace cadre::sm80 {

/// Rows along K by index, in blocks that lie by rows. The loader is told each line's row.
template <typename T, int kExtent, int kBlockBytes, int kThreads>
class IndexedLines : public OperandLoader<T, false, kExtent, kBlockBytes, kThreads> {
  using Base = OperandLoader<T, false, kExtent, kBlockBytes, kThreads>;

 public:
  using Base::kVectorElements;
  using Base::kVectors;
  static constexpr int kLinesOfWarp = 32 / Base::kVectorsOfLine;  ///< at one step
  static constexpr int kWarpLines = kVectors * kLinesOfWarp;      ///< of a block

  __device__ __forceinline__ void start(const TileSource& source) {
    Base::start(source);
    this->data_ = source.data + Base::vector() * 16;
  }

  /// Line `i` of a warp's lines of a block.
  __device__ __forceinline__ static int line_of_warp(int i) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    return i / kLinesOfWarp * Base::kLineStep + warp * kLinesOfWarp + i % kLinesOfWarp;
  }
  /// Which of them vector i of this thread lies in.
  __device__ __forceinline__ static int own_line(int i) {
    return i * kLinesOfWarp + static_cast<int>(threadIdx.x) % 32 / Base::kVectorsOfLine;
  }

  /// Rows below this one exist: all, or none where the thread's vector lies behind the edge. Lines
  /// behind the end of K have no row.
  __device__ __forceinline__ int lines_left(int /*k_left*/) const {
    return Base::vector() * kVectorElements < this->extent_ ? IndexedRows::kNone : 0;
  }

  __device__ __forceinline__ void load_vector(uint32_t destination, int i, int rows_below,
                                              int32_t row) const {
    ptx::cp_async_16_below(destination + i * Base::kStepBytes, this->data_ + this->lines_on(row),
                           row, rows_below);
  }

  __device__ __forceinline__ void advance() {}  // every block has its own rows

  /// Vector i of the next block, down to single elements at the edge; zeros behind it.
  __device__ __forceinline__ void load_part(uint32_t destination, int i, int32_t row) const {
    const int elements = this->extent_ - Base::vector() * kVectorElements;
    const int in_line = max(0, min(elements, kVectorElements)) * static_cast<int>(sizeof(T));
    const bool there = row != IndexedRows::kNone && in_line > 0;
    ptx::cp_async_16(destination + i * Base::kStepBytes,
                     this->data_ + this->lines_on(there ? row : 0), there ? in_line : 0);
  }
};

/// The rows of a warp's lines of the next block, of both operands. A lane finds one of them and
/// puts it into shared memory, kRowsAt bytes behind the start, for the rest of its warp; it has
/// read the one of the block behind by then.
template <typename LinesA, typename LinesB, int kBlockElements, int kThreads, int kRowsAt>
class LineRows {
  static_assert(LinesA::kWarpLines + LinesB::kWarpLines <= 32, "a lane for each line");

 public:
  static constexpr int kRowsBytes = kThreads * static_cast<int>(sizeof(int32_t));

  /// Of a group of `k` rows that begins at `row_begin`. All threads call this together, as they do
  /// all of the others.
  __device__ __forceinline__ void start(const ProductArguments& args, int64_t row_begin, int k) {
    at_ = row_begin + line();
    read_ = read(args, k);
    next(args, k - kBlockElements);
  }

  /// On to the block behind which `k_left` rows are left.
  __device__ __forceinline__ void next(const ProductArguments& args, int k_left) {
    const int32_t row = IndexedRows::checked(index(args), read_);
    __syncwarp();  // all have loaded the block before
    rows()[lane()] = row;
    __syncwarp();
    at_ += kBlockElements;
    read_ = read(args, k_left);
  }

  __device__ __forceinline__ static int32_t of_a(int i) { return rows()[LinesA::own_line(i)]; }
  __device__ __forceinline__ static int32_t of_b(int i) {
    return rows()[LinesA::kWarpLines + LinesB::own_line(i)];
  }

 private:
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ __forceinline__ static bool is_a() { return lane() < LinesA::kWarpLines; }
  __device__ __forceinline__ static int line() {
    return is_a() ? LinesA::line_of_warp(lane())
                  : LinesB::line_of_warp(lane() - LinesA::kWarpLines);
  }
  __device__ __forceinline__ static RowIndexArguments index(const ProductArguments& args) {
    return is_a() ? args.a_index : args.b_index;
  }
  __device__ __forceinline__ static int32_t* rows() {
    extern __shared__ __align__(128) char shared[];
    return reinterpret_cast<int32_t*>(shared + kRowsAt) + threadIdx.x / 32 * 32;
  }

  __device__ __forceinline__ int64_t read(const ProductArguments& args, int k_left) const {
    const bool mine = lane() < LinesA::kWarpLines + LinesB::kWarpLines && line() < k_left;
    return mine ? RowsAlongK{index(args), at_}.read(0) : -1;
  }

  int64_t at_ = 0;     ///< the product's row of this lane's line in the block behind
  int64_t read_ = -1;  ///< what the index says of it
};

}  // namespace cadre::sm80
