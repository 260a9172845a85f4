// A tile of 128 rows and 128 columns, as quantize and dequantize see it: a thread has 8 x 8
// elements, sixteen threads a row of blocks of them. Addresses of codes and scales, and the way of
// a transposed tile through shared memory.
#pragma once

#include "core/fp8_scale.h"
#include "cuda/ptx/fp8.cuh"
#include "cuda/rows/columns.cuh"
#include "cuda/rows/quantize_bands.h"
#include "plan/scale_form.h"

namespace cadre::rows {

inline constexpr int kTileThreads = 256;
inline constexpr int64_t kTileColumns = 128;
/// Rows, columns and blocks of a thread's elements.
inline constexpr int kSide = 8;
inline constexpr int kBlocksOfTile = 16;
static_assert(kSide == kRun);

/// Codes of one arrangement, by row and column of the source. Rows are counted as Band::row, or
/// for a column-wise copy as Band::column.
struct CodeView {
  uint8_t* data = nullptr;  ///< null: not asked for
  int64_t group_stride = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  DType dtype = DType::kE4M3;
  bool in_columns = false;  ///< a column-wise copy of rows: zeros follow each group
  bool words = false;       ///< eight neighbours, in the order of memory, are one aligned word

  static CodeView of(const ScaledTensor& tensor, bool transposed) {
    if (!tensor.given()) return {};
    const size_t first = tensor.rank == 3 ? 1 : 0;
    CodeView view{.data = static_cast<uint8_t*>(tensor.data),
                  .group_stride = tensor.rank == 3 ? tensor.strides[0] : 0,
                  .row_stride = tensor.strides[first],
                  .col_stride = tensor.strides[first + 1],
                  .dtype = tensor.dtype,
                  .in_columns = tensor.columns};
    const auto address = reinterpret_cast<uintptr_t>(tensor.data);
    const auto strides = static_cast<uintptr_t>(view.group_stride | view.row_stride);
    view.words = view.col_stride == 1 && (address | strides) % kSide == 0;
    if (transposed) std::swap(view.row_stride, view.col_stride);
    return view;
  }

  __device__ __forceinline__ uint8_t* at(const Band& band, int64_t row, int64_t col) const {
    const int64_t first = in_columns ? band.column : band.row;
    return data + max(band.group, 0) * group_stride + (first + row) * row_stride + col * col_stride;
  }
};

/// The scales of one arrangement. A block has 1, 32 or 128 rows or columns, all powers of two;
/// where one scale serves all of them, its stride is 0.
struct ScaleRefs {
  char* data = nullptr;
  DType dtype = DType::kF32;
  int64_t group_stride = 0;
  int64_t row_stride = 0;  ///< from one block of rows to the next
  int64_t col_stride = 0;
  int32_t row_shift = 0;  ///< log2 of a block's rows
  int32_t col_shift = 0;
  bool by_lines = false;  ///< blocks of rows follow each other through all groups

  static ScaleRefs of(const ScaledTensor& tensor, const plan::ScaleForm& form, bool transposed) {
    if (!tensor.given()) return {};
    const int32_t inner_block = plan::inner_block_of(form.mode);
    const auto log2_of = [](int32_t block) { return block == 128 ? 7 : block == 32 ? 5 : 0; };
    ScaleRefs refs{.data = static_cast<char*>(tensor.scales.values.data),
                   .dtype = form.dtype,
                   .group_stride = form.group_stride,
                   .row_stride = form.outer_stride,
                   .col_stride = inner_block == 0 ? 0 : form.inner_stride,
                   .row_shift = log2_of(form.outer_block),
                   .col_shift = log2_of(inner_block)};
    if (form.mode == ScaleMode::kTensor) refs.row_stride = 0;
    if (!transposed) return refs;
    std::swap(refs.row_stride, refs.col_stride);
    std::swap(refs.row_shift, refs.col_shift);
    refs.by_lines = tensor.columns && inner_block != 0;
    if (refs.by_lines) refs.group_stride = 0;
    return refs;
  }

  /// Of the scale of an element; `row` counts from the band's first.
  __device__ __forceinline__ int64_t index(const Band& band, int row, int64_t col) const {
    int64_t block_row = (band.row + row) >> row_shift;
    if (by_lines) block_row = row_shift == 7 ? band.line : (band.column + row) >> row_shift;
    return max(band.group, 0) * group_stride + block_row * row_stride +
           (col >> col_shift) * col_stride;
  }
  __device__ __forceinline__ float at(int64_t i) const {
    if (dtype == DType::kE8M0) return e8m0_to_float(reinterpret_cast<const uint8_t*>(data)[i]);
    return reinterpret_cast<const float*>(data)[i];
  }
  __device__ __forceinline__ void set(int64_t i, float scale) const {
    if (dtype == DType::kE8M0) {
      reinterpret_cast<uint8_t*>(data)[i] =
          static_cast<uint8_t>(std::bit_cast<uint32_t>(scale) >> 23);
    } else {
      reinterpret_cast<float*>(data)[i] = scale;
    }
  }
  /// f32 alone: keeps the larger one. Magnitudes have the order of their bits.
  __device__ __forceinline__ void raise(int64_t i, float magnitude) const {
    atomicMax(reinterpret_cast<uint32_t*>(data) + i, std::bit_cast<uint32_t>(magnitude));
  }
};

/// The codes of a tile, transposed. Blocks change places so that both directions have their own
/// banks: block [row / 8, col / 8] of a column lies at row / 8 ^ col / 8.
struct TransposedCodes {
  uint2 words[kTileColumns][kBlocksOfTile];

  __device__ __forceinline__ uint2& at(int row_block, int col) {
    return words[col][row_block ^ col / kSide];
  }
};

/// Where a thread's elements are.
struct TilePlace {
  int row_block = static_cast<int>(threadIdx.x) / kBlocksOfTile;
  int col_block = static_cast<int>(threadIdx.x) % kBlocksOfTile;

  __device__ __forceinline__ int row(int i) const { return row_block * kSide + i; }
  __device__ __forceinline__ int col(int i = 0) const { return col_block * kSide + i; }
};

template <typename Type>
__device__ __forceinline__ uint32_t code_pair(float low, float high) {
#if __CUDA_ARCH__ >= 890
  return std::is_same_v<Type, E4M3> ? ptx::to_e4m3_pair(low, high) : ptx::to_e5m2_pair(low, high);
#else
  constexpr Overflow kOverflow = Overflow::kSaturate;
  return float_to_fp8<Type, kOverflow>(low) |
         static_cast<uint32_t>(float_to_fp8<Type, kOverflow>(high)) << 8;
#endif
}

/// Codes of eight products. The conversion saturates infinity, which is put right where one of the
/// values may be infinite.
template <typename Type>
__device__ __forceinline__ uint2 codes_of(const float (&scaled)[kSide], bool finite) {
  uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words[i] = code_pair<Type>(scaled[4 * i], scaled[4 * i + 1]) |
               code_pair<Type>(scaled[4 * i + 2], scaled[4 * i + 3]) << 16;
  }
  if (!finite) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(scaled[i]) & 0x7fffffffu;
      const int shift = i % 4 * 8;
      if (magnitude != 0x7f800000u) continue;
      words[i / 4] = (words[i / 4] & ~(0x7fu << shift)) | Type::kOverflow << shift;
    }
  }
  return {words[0], words[1]};
}

__device__ __forceinline__ uint2 codes_of(DType type, const float (&scaled)[kSide], bool finite) {
  return type == DType::kE4M3 ? codes_of<E4M3>(scaled, finite) : codes_of<E5M2>(scaled, finite);
}

__device__ __forceinline__ uint8_t byte_of(const uint2& word, int i) {
  return static_cast<uint8_t>((i < 4 ? word.x : word.y) >> i % 4 * 8);
}

/// The first `count` of eight codes, `stride` bytes apart.
__device__ __forceinline__ void store_codes(uint8_t* to, int64_t stride, int count, bool words,
                                            const uint2& codes) {
  if (words && count >= kSide) {
    *reinterpret_cast<uint2*>(to) = codes;
    return;
  }
#pragma unroll 1
  for (int i = 0; i < min(count, kSide); ++i) to[i * stride] = byte_of(codes, i);
}

__device__ __forceinline__ uint2 load_codes(const uint8_t* from, int64_t stride, int count,
                                            bool words) {
  if (words && count >= kSide) return *reinterpret_cast<const uint2*>(from);
  uint64_t word = 0;
#pragma unroll 1
  for (int i = 0; i < min(count, kSide); ++i) {
    word |= static_cast<uint64_t>(from[i * stride]) << i * 8;
  }
  return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)};
}

}  // namespace cadre::rows
