// FP8 operands of the general kernel: codes are widened exactly and multiplied by their scale, with
// one rounding, while a tile is loaded.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "cuda/sm80/simt_kernel.cuh"
#include "cuda/status_word.cuh"

namespace cadre::sm80 {

/// [extent, k] of codes, seen from a tile, and the scales of its rows (or columns).
struct ScaledSource {
  StridedSource codes;  ///< with rows by index: of the tensor's first row
  const char* scales;   ///< of the group
  ScaleArguments form;
  RowIndexArguments index;  ///< of A
  int64_t first_row;        ///< of the tile among the product's rows, for the index
  int64_t first_outer;      ///< of the tile in the group

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
    int64_t row = outer;
    int64_t scaled = first_outer + outer;
    if (index.data != nullptr) {
      const int64_t i = (first_row + outer) * index.stride;
      row = index.is_i64 ? static_cast<const int64_t*>(index.data)[i]
                         : static_cast<const int32_t*>(index.data)[i];
      if (row < 0 || row >= index.limit) {
        if (row != -1) cuda::report_fault(index.fault, plan::DeviceFault::kRowIndex);
        return 0;
      }
      scaled = row;
    }
    const auto code =
        static_cast<__nv_fp8_storage_t>(codes.data[row * codes.outer_stride + k * codes.k_stride]);
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
    if (args.a_index.data != nullptr) codes.data = entry.a;
    return {codes,
            scales_of(args.a_scales, tile.group, entry.row_begin),
            args.a_scales,
            args.a_index,
            entry.row_begin + first,
            first,
            codes.extent,
            codes.k_stride};
  }
  template <typename Traits>
  __device__ __forceinline__ static ScaledSource b(const ProductArguments& args,
                                                   const GroupEntry& entry,
                                                   const ProductTile& tile) {
    const StridedSource codes = source_b<Traits>(args, entry, tile, 1);
    const int64_t first = int64_t{tile.col_tile} * Traits::kTile;
    return {codes,
            scales_of(args.b_scales, tile.group, entry.row_begin),
            args.b_scales,
            {},
            0,
            first,
            codes.extent,
            codes.k_stride};
  }
};

}  // namespace cadre::sm80
