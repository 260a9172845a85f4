// A tile of 128 rows and 128 columns, as quantize and dequantize see it: half a warp has eight
// rows, a thread eight columns of them. Addresses of codes and scales, and the way of a transposed
// tile through shared memory.
#pragma once

#include "core/fp8_scale.h"
#include "cuda/ptx/fp8.cuh"
#include "cuda/rows/columns.cuh"
#include "cuda/rows/quantize_bands.h"
#include "plan/scale_form.h"

namespace cadre::rows {

inline constexpr int kTileThreads = 256;
inline constexpr int kTileColumns = 128;
/// Of a thread.
inline constexpr int kRows = 8;
inline constexpr int kColumns = kRun;
/// Threads side by side, and blocks of rows.
inline constexpr int kLanes = 16;
inline constexpr int kRowBlocks = kTileThreads / kLanes;
static_assert(kRowBlocks * kRows == kBandRows && kLanes * kColumns == kTileColumns);

/// Codes of one arrangement, by row and column of the source. Rows are counted as Band::row, or
/// for a column-wise copy as Band::column.
struct CodeView {
  uint8_t* data = nullptr;  ///< null: not asked for
  int64_t group_stride = 0;
  int64_t row_stride = 0;
  int64_t col_stride = 0;
  DType dtype = DType::kE4M3;
  bool in_columns = false;  ///< a column-wise copy of rows: zeros follow each group
  bool words = false;       ///< a thread's neighbours, in the order of memory, are one aligned word

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
    view.words = view.col_stride == 1 && (address | strides) % sizeof(uint2) == 0;
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

/// The codes of a tile, transposed: a word has eight rows of a column. Words change places so that
/// both directions have their own banks: of column c, row block r lies at r ^ c / 8.
struct TransposedCodes {
  uint2 words[kTileColumns][kRowBlocks];

  __device__ __forceinline__ uint2& at(int row_block, int col) {
    return words[col][row_block ^ col / kColumns];
  }
};

/// Where a thread's elements are.
struct TilePlace {
  int row_block = static_cast<int>(threadIdx.x) / kLanes;
  int col_block = static_cast<int>(threadIdx.x) % kLanes;

  __device__ __forceinline__ int row(int i) const { return row_block * kRows + i; }
  __device__ __forceinline__ int col(int j = 0) const { return col_block * kColumns + j; }
};

/// Transposed, a thread has eight rows of eight columns, sixteen threads a column: column(step) of
/// them and the same rows each time.
struct TransposedPlace {
  static constexpr int kStep = kTileThreads / kRowBlocks;
  static constexpr int kSteps = kTileColumns / kStep;
  int row_block = static_cast<int>(threadIdx.x) % kRowBlocks;
  int first = static_cast<int>(threadIdx.x) / kRowBlocks;

  __device__ __forceinline__ int row() const { return row_block * kRows; }
  __device__ __forceinline__ int col(int step) const { return step * kStep + first; }
};

/// The block's band: blockIdx.y counts those of a group, blockIdx.z groups.
__device__ __forceinline__ Band band_of_block(const Bands& bands) {
  const int64_t index = bands.first_index + blockIdx.y;
  if (bands.list != nullptr) return bands.list[index];
  const int64_t row = index * kBandRows;
  return {.row = row,
          .column = row,
          .line = index,
          .rows = static_cast<int32_t>(min(bands.group_rows - row, kBandRows)),
          .group = static_cast<int32_t>(bands.first_group + blockIdx.z)};
}

/// Launches a block for each tile, so that loads of one hide behind stores of another: tiles of a
/// band side by side, and as often as a grid has no room for more. `args` has bands and stripes.
template <typename Arguments>
Status launch_tiles(const cuda::Launch& launch, std::string_view name, void (*kernel)(Arguments),
                    Arguments args) {
  constexpr int64_t kMost = 65535;
  Bands& bands = args.bands;
  if (args.stripes == 0) return {};
  if (args.stripes > INT32_MAX) return Status::unsupported("more than 2^38 columns");
  for (; bands.first_group < bands.groups; bands.first_group += kMost) {
    for (bands.first_index = 0; bands.first_index < bands.count; bands.first_index += kMost) {
      const int64_t rows = std::min(bands.count - bands.first_index, kMost);
      const int64_t layers = std::min(bands.groups - bands.first_group, kMost);
      const cuda::GridShape shape{.blocks = static_cast<unsigned>(args.stripes),
                                  .rows = static_cast<unsigned>(rows),
                                  .layers = static_cast<unsigned>(layers),
                                  .threads = kTileThreads,
                                  .after_prologue = true};
      if (Status status = cuda::launch_kernel(launch, name, kernel, shape, args); !status.ok()) {
        return status;
      }
    }
  }
  return {};
}

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
__device__ __forceinline__ uint2 codes_of(const float (&scaled)[8], bool finite) {
  uint32_t words[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float* const of = scaled + 4 * half;
    uint32_t& word = words[half];
    word = code_pair<Type>(of[0], of[1]) | code_pair<Type>(of[2], of[3]) << 16;
    if (finite) continue;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t magnitude = std::bit_cast<uint32_t>(of[i]) & 0x7fffffffu;
      if (magnitude != 0x7f800000u) continue;
      word = (word & ~(0x7fu << i * 8)) | Type::kOverflow << i * 8;
    }
  }
  return {words[0], words[1]};
}

/// The numbers of two codes.
template <typename Type>
__device__ __forceinline__ float2 values_of(uint32_t pair) {
#if __CUDA_ARCH__ >= 890
  return std::is_same_v<Type, E4M3> ? ptx::from_e4m3_pair(pair) : ptx::from_e5m2_pair(pair);
#else
  return {fp8_to_float<Type>(static_cast<uint8_t>(pair)),
          fp8_to_float<Type>(static_cast<uint8_t>(pair >> 8))};
#endif
}

/// f(Type{}) with E4M3 or E5M2.
template <typename F>
__device__ __forceinline__ void with_fp8(DType dtype, F f) {
  dtype == DType::kE4M3 ? f(E4M3{}) : f(E5M2{});
}

/// The first `count` of eight codes, `stride` bytes apart. What isn't whole words is rare, so
/// short.
__device__ __forceinline__ void store_codes(uint8_t* to, int64_t stride, int count, bool words,
                                            uint2 codes) {
  if (words && count >= 8) {
    *reinterpret_cast<uint2*>(to) = codes;
    return;
  }
#pragma unroll 1
  for (int i = 0; i < min(count, 8); ++i) {
    *to = static_cast<uint8_t>(codes.x);
    to += stride;
    codes = {__funnelshift_r(codes.x, codes.y, 8), codes.y >> 8};
  }
}

__device__ __forceinline__ uint2 load_codes(const uint8_t* from, int64_t stride, int count,
                                            bool words) {
  if (words && count >= 8) return *reinterpret_cast<const uint2*>(from);
  uint2 codes{};
#pragma unroll 1
  for (int i = min(count, 8) - 1; i >= 0; --i) {
    codes = {codes.x << 8 | from[i * stride], __funnelshift_l(codes.x, codes.y, 8)};
  }
  return codes;
}

}  // namespace cadre::rows
