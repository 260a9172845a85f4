// Brings an operand's tile into shared memory, one block of K after the other: cp.async where 16
// bytes fit, single elements of any stride where they don't. Outside the group's rows, columns and
// K everything is zero.
#pragma once

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm80/indexed_rows.cuh"

namespace cadre::sm80 {

/// How a tile lies in shared memory, in vectors of 16 bytes, for blocks of kBlockBytes (64 or 128)
/// of K. K-major: rows along M (or N) of one block each; the swizzle puts the vectors of eight rows
/// that ldmatrix reads together on eight different 16-byte columns of the banks. Otherwise: rows
/// along K of kExtent 16-bit elements; the vector number is xored with the row's low bits.
template <bool kKMajor, int kExtent, int kBlockBytes>
__device__ __forceinline__ uint32_t vector_offset(int row, int vector) {
  if constexpr (!kKMajor) {
    return static_cast<uint32_t>(row * kExtent * 2 + ((vector ^ (row & 7)) << 4));
  } else if constexpr (kBlockBytes == 128) {
    return static_cast<uint32_t>(row * kBlockBytes + ((vector ^ (row & 7)) << 4));
  } else {
    return static_cast<uint32_t>(row * kBlockBytes + ((vector ^ ((row >> 1) & 3)) << 4));
  }
}

/// An operand seen from a tile: [extent, K] with any strides, in elements.
struct TileSource {
  const char* data;      ///< of element (0, 0) of the tile
  int64_t outer_stride;  ///< along M or N
  int64_t k_stride;
  int extent;  ///< rows (or columns) of the tile that the group has
};

/// The thread's share of a tile. A line is a row of the shared tile: along K when kKMajor, else
/// along M or N. A thread brings vector() of lines first_line(), first_line() + kLineStep, ...
template <typename T, bool kKMajor, int kExtent, int kBlockBytes, int kThreads>
class OperandLoader {
 public:
  static constexpr int kStageBytes = kExtent * kBlockBytes;
  static constexpr int kBlockElements = kBlockBytes / static_cast<int>(sizeof(T));
  static constexpr int kVectorElements = 16 / static_cast<int>(sizeof(T));
  static constexpr int kLines = kKMajor ? kExtent : kBlockElements;
  static constexpr int kVectorsOfLine = (kKMajor ? kBlockElements : kExtent) / kVectorElements;
  static constexpr int kLineStep = kThreads / kVectorsOfLine;
  /// Vectors of a block that one thread brings.
  static constexpr int kVectors = kLines / kLineStep;

  /// True when a vector lies across the end of the tile or of K: such a tile needs load_part.
  __device__ __forceinline__ static bool ragged(int64_t extent, int64_t k) {
    return (kKMajor ? k : extent) % kVectorElements != 0;
  }

  /// Sets the state of all but load_elements, which needs none.
  __device__ __forceinline__ void start(const TileSource& source) {
    const int64_t stride = kKMajor ? source.outer_stride : source.k_stride;
    line_bytes_ = static_cast<uint32_t>(stride) * static_cast<uint32_t>(sizeof(T));
    extent_ = source.extent;
    data_ = source.data + vector() * 16 + lines_on(first_line());
  }

  /// Where in a stage the thread's first vector goes.
  __device__ __forceinline__ static uint32_t place() {
    return vector_offset<kKMajor, kExtent, kBlockBytes>(first_line(), vector());
  }

  /// Lines from the thread's first one on that a block has for it when `k_left` (at most a block,
  /// negative behind the end) elements of K are left.
  __device__ __forceinline__ int lines_left(int k_left) const {
    const bool inside = vector() * kVectorElements < (kKMajor ? k_left : extent_);
    return inside ? (kKMajor ? extent_ : k_left) - first_line() : 0;
  }

  /// Vector i of the next block, for a tile that isn't ragged; zeros behind the last line.
  __device__ __forceinline__ void load_vector(uint32_t destination, int i, int lines_left) const {
    ptx::cp_async_16_below(destination + i * kStepBytes, data_ + lines_on(i * kLineStep),
                           i * kLineStep, lines_left);
  }

  __device__ __forceinline__ void advance() {
    data_ += kKMajor ? uint64_t{kBlockBytes} : lines_on(kBlockElements);
  }

  /// All vectors of the next block, down to single elements at the edges; zeros behind them.
  __device__ __forceinline__ void load_part(uint32_t destination, int k_left) const {
    const int lines = lines_left(k_left);
    const int elements = (kKMajor ? k_left : extent_) - vector() * kVectorElements;
    const int in_line = max(0, min(elements, kVectorElements)) * static_cast<int>(sizeof(T));
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int bytes = i * kLineStep < lines ? in_line : 0;
      ptx::cp_async_16(destination + i * kStepBytes,
                       data_ + lines_on(bytes > 0 ? i * kLineStep : 0), bytes);
    }
  }

  /// The same for the block at `k_begin`, whatever the strides.
  __device__ __forceinline__ static void load_elements(const TileSource& source, uint32_t stage,
                                                       int64_t k_begin, int k_left) {
    const uint32_t destination = stage + place();
    const T* data = reinterpret_cast<const T*>(source.data) + k_begin * source.k_stride;
    const int lines = kKMajor ? source.extent : k_left;
    const int elements = kKMajor ? k_left : source.extent;
    const int64_t line_stride = kKMajor ? source.outer_stride : source.k_stride;
    const int64_t stride = kKMajor ? source.k_stride : source.outer_stride;
    const int first = vector() * kVectorElements;
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int line = first_line() + i * kLineStep;
      const T* from = data + line * line_stride + first * stride;
      const int count = line < lines ? elements - first : 0;
      store_elements(destination + i * kStepBytes, from, stride, count);
    }
  }

  /// The same where rows along K lie by index, and `source` begins with the tensor's first row.
  __device__ __forceinline__ static void load_elements_of(const RowsAlongK& rows,
                                                          const TileSource& source, uint32_t stage,
                                                          int64_t k_begin, int k_left) {
    const uint32_t destination = stage + place();
    const T* data = reinterpret_cast<const T*>(source.data);
    const int first = vector() * kVectorElements;
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int line = first_line() + i * kLineStep;
      if constexpr (kKMajor) {
        const T* const along = data + line * source.outer_stride;
        const int count = line < source.extent ? k_left - first : 0;
        store_each(destination + i * kStepBytes, count, [&](int j) {
          const int32_t row = rows.at(k_begin + first + j);
          return row == IndexedRows::kNone ? T{} : along[row * source.k_stride];
        });
      } else {
        const int32_t row = line < k_left ? rows.at(k_begin + line) : IndexedRows::kNone;
        const bool there = row != IndexedRows::kNone;
        store_elements(destination + i * kStepBytes,
                       data + (there ? row : 0) * source.k_stride + first * source.outer_stride,
                       source.outer_stride, there ? source.extent - first : 0);
      }
    }
  }

 protected:
  static constexpr uint32_t kStepBytes = kLineStep * kVectorsOfLine * 16;
  static_assert(kLineStep % 8 == 0, "the swizzle must be the same in every step");

  /// A vector of single elements, of which `count` exist; zeros behind them.
  __device__ __forceinline__ static void store_elements(uint32_t destination, const T* from,
                                                        int64_t stride, int count) {
    store_each(destination, count, [&](int j) { return from[j * stride]; });
  }
  template <typename Element>
  __device__ __forceinline__ static void store_each(uint32_t destination, int count,
                                                    Element element) {
    union {
      T values[kVectorElements];
      uint32_t words[4];
    } packed;
    packed.words[0] = packed.words[1] = packed.words[2] = packed.words[3] = 0;
#pragma unroll
    for (int j = 0; j < kVectorElements; ++j) {
      if (j < count) packed.values[j] = element(j);
    }
    ptx::store_shared_16(destination, packed.words);
  }

  __device__ __forceinline__ static int first_line() {
    return static_cast<int>(threadIdx.x) / kVectorsOfLine;
  }
  __device__ __forceinline__ static int vector() {
    return static_cast<int>(threadIdx.x) % kVectorsOfLine;
  }

  /// One instruction, since the stride is neither negative nor wider than 32 bits
  /// (prepare_kernel.cu).
  __device__ __forceinline__ uint64_t lines_on(int lines) const {
    return uint64_t{line_bytes_} * static_cast<uint32_t>(lines);
  }

  const char* data_ = nullptr;
  uint32_t line_bytes_ = 0;
  int extent_ = 0;
};

/// The same for rows of A by index, each along K. A thread finds the numbers of its rows once for a
/// tile and keeps them in shared memory, kRowsAt bytes behind the start: registers are what there
/// is least of. Nobody else reads them.
template <typename T, int kExtent, int kBlockBytes, int kThreads, int kRowsAt>
class IndexedLoader : public OperandLoader<T, true, kExtent, kBlockBytes, kThreads> {
  using Base = OperandLoader<T, true, kExtent, kBlockBytes, kThreads>;

 public:
  using Base::kVectorElements;
  using Base::kVectors;
  static constexpr int kRowsBytes = kVectors * kThreads * static_cast<int>(sizeof(int32_t));

  __device__ __forceinline__ void start(const TileSource& source, const IndexedRows& rows) {
    Base::start(source);
    this->data_ = source.data + Base::vector() * 16;
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int line = Base::first_line() + i * Base::kLineStep;
      row(i) = line < source.extent ? rows.at(line) : IndexedRows::kNone;
    }
  }

  /// Rows below this one exist in the next block: all, or none where the thread's vector lies
  /// behind the end of K. Lines behind the tile's last one have no row.
  __device__ __forceinline__ int lines_left(int k_left) const {
    return Base::vector() * kVectorElements < k_left ? IndexedRows::kNone : 0;
  }

  __device__ __forceinline__ void load_vector(uint32_t destination, int i, int rows_below) const {
    const int32_t from = row(i);
    ptx::cp_async_16_below(destination + i * Base::kStepBytes, this->data_ + this->lines_on(from),
                           from, rows_below);
  }

  __device__ __forceinline__ void load_part(uint32_t destination, int k_left) const {
    const int elements = k_left - Base::vector() * kVectorElements;
    const int in_line = max(0, min(elements, kVectorElements)) * static_cast<int>(sizeof(T));
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int32_t from = row(i);
      const bool there = from < lines_left(k_left);
      ptx::cp_async_16(destination + i * Base::kStepBytes,
                       this->data_ + this->lines_on(there ? from : 0), there ? in_line : 0);
    }
  }

  __device__ __forceinline__ static void load_elements(const TileSource& source,
                                                       const IndexedRows& rows, uint32_t stage,
                                                       int64_t k_begin, int k_left) {
    const T* data = reinterpret_cast<const T*>(source.data) + k_begin * source.k_stride;
    const int first = Base::vector() * kVectorElements;
#pragma unroll 1
    for (int i = 0; i < kVectors; ++i) {
      const int line = Base::first_line() + i * Base::kLineStep;
      const int32_t from = line < source.extent ? rows.at(line) : IndexedRows::kNone;
      const bool there = from != IndexedRows::kNone;
      Base::store_elements(
          stage + Base::place() + i * Base::kStepBytes,
          data + (there ? from : 0) * source.outer_stride + first * source.k_stride,
          source.k_stride, there ? k_left - first : 0);
    }
  }

 private:
  __device__ __forceinline__ static int32_t& row(int i) {
    extern __shared__ __align__(128) char shared[];
    return reinterpret_cast<int32_t*>(shared + kRowsAt)[i * kThreads + threadIdx.x];
  }
};

}  // namespace cadre::sm80
