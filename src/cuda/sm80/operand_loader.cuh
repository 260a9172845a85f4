// Brings an operand's tile into shared memory, one block of K after the other: cp.async where 16
// bytes fit, single elements of any stride where they don't. Outside the group's rows, columns and
// K everything is zero.
#pragma once

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mma_sync.cuh"

namespace cadre::sm80 {

/// Bytes of K in one block: 32 elements of 16 bits, 64 of int8.
inline constexpr int kBlockBytes = 64;

/// How a tile lies in shared memory, in chunks of 16 bytes. K-major: rows along M (or N) of
/// kBlockBytes each, four chunks; eight rows that ldmatrix reads together fall on eight different
/// 16-byte columns of the banks. Otherwise: rows along K of kExtent 16-bit elements; the chunk
/// number is xored with the row's low bits.
template <bool kKMajor, int kExtent>
__device__ __forceinline__ uint32_t chunk_offset(int row, int chunk) {
  if constexpr (kKMajor) {
    return static_cast<uint32_t>(row * kBlockBytes + ((chunk ^ ((row >> 1) & 3)) << 4));
  } else {
    return static_cast<uint32_t>(row * kExtent * 2 + ((chunk ^ (row & 7)) << 4));
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
template <typename T, bool kKMajor, int kExtent, int kThreads>
class OperandLoader {
 public:
  static constexpr int kStageBytes = kExtent * kBlockBytes;

  /// The state of load_vectors; load_elements needs none.
  __device__ __forceinline__ void start(const TileSource& source) {
    line_bytes_ =
        (kKMajor ? source.outer_stride : source.k_stride) * static_cast<int64_t>(sizeof(T));
    data_ = source.data + first_line() * line_bytes_ + chunk() * 16;
    extent_ = source.extent;
  }

  /// Loads the next block, of which `k_left` (at most a block's) elements of K exist.
  __device__ __forceinline__ void load_vectors(uint32_t stage, int k_left) {
    const uint32_t destination = stage + chunk_offset<kKMajor, kExtent>(first_line(), chunk());
    const int lines = kKMajor ? extent_ : k_left;
    const int elements = (kKMajor ? k_left : extent_) - chunk() * kChunkElements;
    const int in_line = max(0, min(elements, kChunkElements)) * static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int bytes = first_line() + i * kLineStep < lines ? in_line : 0;
      ptx::cp_async_16(destination + i * kStepBytes, data_ + i * kLineStep * line_bytes_, bytes);
    }
    data_ += kKMajor ? static_cast<int64_t>(kBlockBytes) : line_bytes_ * kBlockElements;
  }

  /// The same for the block at `k_begin`, whatever the strides.
  __device__ __forceinline__ static void load_elements(const TileSource& source, uint32_t stage,
                                                       int64_t k_begin, int k_left) {
    const uint32_t destination = stage + chunk_offset<kKMajor, kExtent>(first_line(), chunk());
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

  const char* data_ = nullptr;
  int64_t line_bytes_ = 0;
  int extent_ = 0;
};

}  // namespace cadre::sm80
