// Brings an operand's tile into shared memory, one block of K after the other: cp.async where 16
// bytes fit, single elements of any stride where they don't. Outside the group's rows, columns and
// K everything is zero.
#pragma once

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace cadre::sm80 {

/// How a tile lies in shared memory, in chunks of 16 bytes, for blocks of kBlockBytes (64 or 128)
/// of K. K-major: rows along M (or N) of one block each; the swizzle puts the chunks of eight rows
/// that ldmatrix reads together on eight different 16-byte columns of the banks. Otherwise: rows
/// along K of kExtent 16-bit elements; the chunk number is xored with the row's low bits.
template <bool kKMajor, int kExtent, int kBlockBytes>
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  if constexpr (!kKMajor) {
    return static_cast<uint32_t>(row * kExtent * 2 + ((chunk ^ (row & 7)) << 4));
  } else if constexpr (kBlockBytes == 128) {
    return static_cast<uint32_t>(row * kBlockBytes + ((chunk ^ (row & 7)) << 4));
  } else {
    return static_cast<uint32_t>(row * kBlockBytes + ((chunk ^ ((row >> 1) & 3)) << 4));
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
/// along M or N.
template <typename T, bool kKMajor, int kExtent, int kBlockBytes, int kThreads>
class OperandLoader {
 public:
  static constexpr int kStageBytes = kExtent * kBlockBytes;

  /// Sets the state of load_full and load_part; load_elements needs none. Chunks that start behind
  /// the tile's last element are taken from its last chunk instead: what they bring only reaches
  /// outputs that aren't stored.
  __device__ __forceinline__ void start(const TileSource& source) {
    const int64_t stride = kKMajor ? source.outer_stride : source.k_stride;
    line_bytes_ = static_cast<int>(stride * static_cast<int64_t>(sizeof(T)));
    extent_ = source.extent;
    const int last_chunk = kKMajor ? kChunksOfLine - 1 : (extent_ - 1) / kChunkElements;
    data_ = source.data + min(chunk(), last_chunk) * 16;
    if constexpr (!kKMajor) data_ += int64_t{first_line()} * line_bytes_;
  }

  /// True when some chunk lies across the end of the tile: every block then goes through load_part.
  __device__ __forceinline__ bool ragged() const {
    return !kKMajor && extent_ % kChunkElements != 0;
  }

  /// Loads the next block, all of which exists. Rows behind the tile's last one repeat it.
  __device__ __forceinline__ void load_full(uint32_t stage) {
    const uint32_t destination = destination_in(stage);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int line = kKMajor ? min(first_line() + i * kLineStep, extent_ - 1) : i * kLineStep;
      ptx::cp_async_16(destination + i * kStepBytes, data_ + int64_t{line} * line_bytes_);
    }
    data_ += kKMajor ? int64_t{kBlockBytes} : int64_t{kBlockElements} * line_bytes_;
  }

  /// Loads the last block, of which `k_left` elements of K exist, or a block of a ragged tile; the
  /// rest is zero.
  __device__ __forceinline__ void load_part(uint32_t stage, int k_left) {
    const uint32_t destination = destination_in(stage);
    const int lines = kKMajor ? extent_ : k_left;
    const int elements = (kKMajor ? k_left : extent_) - chunk() * kChunkElements;
    const int in_line = max(0, min(elements, kChunkElements)) * static_cast<int>(sizeof(T));
#pragma unroll 1
    for (int i = 0; i < kSteps; ++i) {
      const int line = first_line() + i * kLineStep;
      const int from = kKMajor ? line : i * kLineStep;
      const int bytes = line < lines ? in_line : 0;
      ptx::cp_async_16(destination + i * kStepBytes,
                       data_ + int64_t{bytes > 0 ? from : 0} * line_bytes_, bytes);
    }
    data_ += kKMajor ? int64_t{kBlockBytes} : int64_t{kBlockElements} * line_bytes_;
  }

  /// The same for the block at `k_begin`, whatever the strides.
  __device__ __forceinline__ static void load_elements(const TileSource& source, uint32_t stage,
                                                       int64_t k_begin, int k_left) {
    const uint32_t destination = destination_in(stage);
    const T* data = reinterpret_cast<const T*>(source.data) + k_begin * source.k_stride;
    const int lines = kKMajor ? source.extent : k_left;
    const int elements = kKMajor ? k_left : source.extent;
    const int64_t line_stride = kKMajor ? source.outer_stride : source.k_stride;
    const int64_t stride = kKMajor ? source.k_stride : source.outer_stride;
    const int first = chunk() * kChunkElements;
#pragma unroll 1
    for (int i = 0; i < kSteps; ++i) {
      const int line = first_line() + i * kLineStep;
      const T* from = data + line * line_stride + first * stride;
      const int count = line < lines ? elements - first : 0;
      union {
        T values[kChunkElements];
        uint32_t words[4];
      } packed;
      packed.words[0] = packed.words[1] = packed.words[2] = packed.words[3] = 0;
#pragma unroll
      for (int j = 0; j < kChunkElements; ++j) {
        if (j < count) packed.values[j] = from[j * stride];
      }
      ptx::store_shared_16(destination + i * kStepBytes, packed.words);
    }
  }

 private:
  static constexpr int kBlockElements = kBlockBytes / static_cast<int>(sizeof(T));
  static constexpr int kChunkElements = 16 / static_cast<int>(sizeof(T));
  static constexpr int kLines = kKMajor ? kExtent : kBlockElements;
  static constexpr int kChunksOfLine = (kKMajor ? kBlockElements : kExtent) / kChunkElements;
  static constexpr int kLineStep = kThreads / kChunksOfLine;
  static constexpr int kSteps = kLines / kLineStep;
  static constexpr uint32_t kStepBytes = kLineStep * kChunksOfLine * 16;
  static_assert(kLineStep % 8 == 0, "the swizzle must be the same in every step");

  __device__ __forceinline__ static int first_line() {
    return static_cast<int>(threadIdx.x) / kChunksOfLine;
  }
  __device__ __forceinline__ static int chunk() {
    return static_cast<int>(threadIdx.x) % kChunksOfLine;
  }

  __device__ __forceinline__ static uint32_t destination_in(uint32_t stage) {
    return stage + chunk_offset<kKMajor, kExtent, kBlockBytes>(first_line(), chunk());
  }

  const char* data_ = nullptr;
  int line_bytes_ = 0;
  int extent_ = 0;
};

}  // namespace cadre::sm80
