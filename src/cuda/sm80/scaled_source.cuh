// FP8 operands of the general kernel: codes are widened exactly and multiplied by their scale, with
// one rounding, while a tile is loaded.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/sm80/simt_kernel.cuh"

namespace cadre::sm80 {

/// [extent, k] of codes, seen from a tile, and the scales of its rows (or columns).
struct ScaledSource {
  StridedSource codes;  ///< with rows by index: of the tensor's first row
  const char* scales;   ///< of the group
  ScaleArguments form;
  ByIndex by_index;
  RowsAlongK rows;      ///< or those of A
  int64_t first_outer;  ///< of the tile in the group

  /// What a StagedBlock asks of a source.
  int64_t extent;
  int64_t k_stride;

  __device__ __forceinline__ float scale(int64_t outer, int64_t k) const {
    // Blocks are powers of two, and a division of 64 bits takes forty registers.
    const int64_t block = form.inner_block == 0 ? 0 : k >> (31 - __clz(form.inner_block));
    const int64_t at =
        (outer >> (31 - __clz(form.outer_block))) * form.outer_stride + block * form.inner_stride;
    if (!form.is_e8m0) return reinterpret_cast<const float*>(scales)[at];
    const auto exponent = static_cast<uint32_t>(static_cast<uint8_t>(scales[at]));
    if (exponent == 0xff) return __int_as_float(0x7fc00000);
    // 2^-127 is subnormal.
    return __uint_as_float(exponent == 0 ? 0x00400000u : exponent << 23);
  }

  __device__ __forceinline__ float value(int64_t outer, int64_t k) const {
    int64_t scaled = first_outer + outer;
    if (by_index != ByIndex::kNone) {
      const bool along_k = by_index == ByIndex::kRowsAlongK;
      const int32_t row = rows.at(along_k ? k : outer);
      if (row == IndexedRows::kNone) return 0;
      if (along_k) {
        k = row;  // of all rows there is one scale
      } else {
        outer = scaled = row;
      }
    }
    const auto code = static_cast<__nv_fp8_storage_t>(
        codes.data[outer * codes.outer_stride + k * codes.k_stride]);
    const __half_raw half =
        __nv_cvt_fp8_to_halfraw(code, codes.dtype == DType::kE5M2 ? __NV_E5M2 : __NV_E4M3);
    return __fmul_rn(__half2float(__half(half)), scale(scaled, k));
  }
};

__device__ __forceinline__ const char* scales_of(const ScaleArguments& form, int group,
                                                 int64_t begin) {
  const int64_t size = form.is_e8m0 ? 1 : 4;
  const char* const of_group = form.pointers != nullptr
                                   ? static_cast<const char*>(form.pointers[group])
                                   : form.data + group * form.group_stride * size;
  return of_group + begin * form.begin_stride * size;
}

struct ScaledSources {
  static constexpr int kResidentBlocks = 1;  ///< so that two sources have their registers

  template <typename Traits>
  __device__ __forceinline__ static ScaledSource a(const ProductArguments& args,
                                                   const GroupEntry& entry,
                                                   const ProductTile& tile) {
    StridedSource codes = source_a<Traits>(args, entry, tile, 1);
    const int64_t first = int64_t{tile.row_tile} * Traits::kTile;
    const ByIndex by_index = args.by_index();
    if (by_index == ByIndex::kRowsOfA) codes.data = entry.a;
    return {codes,
            scales_of(args.a_scales, tile.group, entry.row_begin),
            args.a_scales,
            by_index,
            {args.a_index, entry.row_begin + (by_index == ByIndex::kRowsOfA ? first : 0)},
            first,
            codes.extent,
            codes.k_stride};
  }
  template <typename Traits>
  __device__ __forceinline__ static ScaledSource b(const ProductArguments& args,
                                                   const GroupEntry& entry,
                                                   const ProductTile& tile) {
    const StridedSource codes = source_b<Traits>(args, entry, tile, 1);
    const ByIndex by_index = args.by_index();
    const int64_t first = int64_t{tile.col_tile} * Traits::kTile;
    return {codes,
            scales_of(args.b_scales, tile.group, entry.row_begin),
            args.b_scales,
            by_index == ByIndex::kRowsAlongK ? by_index : ByIndex::kNone,
            {args.b_index, entry.row_begin},
            first,
            codes.extent,
            codes.k_stride};
  }
};

}  // namespace cadre::sm80
