// The epilogue of the portable kernels. In the mma kernels a warp's 64x64 accumulators pass through
// a strip of shared memory, eight rows at a time, so that whole lines of D are written and C and
// bias are read the same way.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/sm80/arguments.h"
#include "cuda/sm80/elements.cuh"
#include "cuda/sm80/mma_shape.h"

namespace cadre::sm80 {

// Transforms: what is computed from a run of sums, in one row and from column `col` on.

/// row_scale * (alpha * sum + bias_scale * bias) + beta * C.
template <typename Compute>
__device__ __forceinline__ void apply_factors(const EpilogueArguments& args,
                                              const GroupEntry& entry, int64_t row, int64_t col,
                                              int count, Compute (&value)[kRun]) {
  const auto alpha = static_cast<Compute>(entry.alpha);
#pragma unroll
  for (int i = 0; i < kRun; ++i) value[i] *= alpha;
  if (entry.bias != nullptr) {
    Compute bias[kRun];
    with_float_type(args.bias_dtype, [&]<typename T>(T) {
      load_run(reinterpret_cast<const T*>(entry.bias) + col * args.bias_stride, args.bias_stride,
               count, (entry.vector_flags & kVectorBias) != 0, bias);
    });
    const Compute scale =
        args.bias_scale.data == nullptr
            ? Compute{1}
            : load_element<Compute>(args.bias_scale.data, args.bias_scale.dtype,
                                    (entry.row_begin + row) * args.bias_scale.stride);
#pragma unroll
    for (int i = 0; i < kRun; ++i) value[i] += scale * bias[i];
  }
  if (args.row_scale.data != nullptr) {
    const Compute scale = load_element<Compute>(args.row_scale.data, args.row_scale.dtype,
                                                (entry.row_begin + row) * args.row_scale.stride);
#pragma unroll
    for (int i = 0; i < kRun; ++i) value[i] *= scale;
  }
  if (entry.beta != 0) {
    Compute c[kRun];
    const auto beta = static_cast<Compute>(entry.beta);
    with_float_type(args.c_dtype, [&]<typename T>(T) {
      load_run(
          reinterpret_cast<const T*>(entry.c) + row * entry.c_row_stride + col * args.c_col_stride,
          args.c_col_stride, count, (entry.vector_flags & kVectorC) != 0, c);
    });
#pragma unroll
    for (int i = 0; i < kRun; ++i) value[i] += beta * c[i];
  }
}

/// int8 -> int32: the wrapping sum with C.
__device__ __forceinline__ void add_int_c(const EpilogueArguments& args, const GroupEntry& entry,
                                          int64_t row, int64_t col, int count,
                                          int32_t (&value)[kRun]) {
  if (entry.beta == 0) return;
  int32_t c[kRun];
  load_run(reinterpret_cast<const int32_t*>(entry.c) + row * entry.c_row_stride +
               col * args.c_col_stride,
           args.c_col_stride, count, (entry.vector_flags & kVectorC) != 0, c);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    value[i] = static_cast<int32_t>(static_cast<uint32_t>(value[i]) + static_cast<uint32_t>(c[i]));
  }
}

// Sinks: a run goes to D, rounded once; a warp's accumulators go through shared memory. Results
// that no transform needs to see in f32 have sinks of their own: plain_epilogue.cuh,
// even_epilogue.cuh.

template <typename T, typename Compute>
__device__ __forceinline__ void store_to_d(const ProductArguments& args, const GroupEntry& entry,
                                           int64_t row, int64_t col, int count,
                                           Compute (&value)[kRun]) {
  store_run(reinterpret_cast<T*>(entry.d) + row * entry.d_row_stride + col * args.d_col_stride,
            args.d_col_stride, count, (entry.vector_flags & kVectorD) != 0, value);
}

/// The first kCount of a run of columns, as far as D has them.
template <typename Compute, int kCount = kRun>
__device__ __forceinline__ void finish_run(const ProductArguments& args, const GroupEntry& entry,
                                           int64_t row, int64_t col, Compute (&value)[kRun]) {
  const int64_t left = entry.n - col;
  const int count = left < kCount ? static_cast<int>(left) : kCount;
  if constexpr (std::is_same_v<Compute, int32_t>) {
    add_int_c(args.epilogue, entry, row, col, count, value);
    store_to_d<int32_t>(args, entry, row, col, count, value);
  } else {
    apply_factors(args.epilogue, entry, row, col, count, value);
    with_float_type(args.d_dtype,
                    [&]<typename T>(T) { store_to_d<T>(args, entry, row, col, count, value); });
  }
}

template <typename Acc>
struct alignas(2 * sizeof(Acc)) Pair {
  Acc first;
  Acc second;
};

/// Writes a warp's accumulators. (row, col) is the place of the warp's 64x64 tile in the group's D;
/// `strip` is the warp's own shared memory.
template <typename Acc>
__device__ __forceinline__ void store_warp_tile(const ProductArguments& args,
                                                const GroupEntry& entry, int64_t row, int64_t col,
                                                const Acc (&acc)[4][8][4], Acc* strip) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Acc* mine = strip + lane / 4 * kStripPitch + lane % 4 * 2;
  // Rolled, so that there is one copy of the code below; the register arrays are picked by constant
  // indices.
#pragma unroll 1
  for (int slice = 0; slice < 8; ++slice) {
    if (row + slice * kStripRows >= entry.m) break;
    __syncwarp();
#pragma unroll
    for (int mi = 0; mi < 4; ++mi) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (slice != 2 * mi + half) continue;
#pragma unroll
        for (int ni = 0; ni < 8; ++ni) {
          *reinterpret_cast<Pair<Acc>*>(mine + 8 * ni) = {acc[mi][ni][2 * half],
                                                          acc[mi][ni][2 * half + 1]};
        }
      }
    }
    __syncwarp();
#pragma unroll 1
    for (int run = lane; run < kStripRows * 64 / kRun; run += 32) {
      const int64_t at_row = row + slice * kStripRows + run / 8;
      const int64_t at_col = col + run % 8 * kRun;
      if (at_row >= entry.m || at_col >= entry.n) continue;
      const Acc* from = strip + run / 8 * kStripPitch + run % 8 * kRun;
      Acc sums[kRun];
#pragma unroll
      for (int i = 0; i < kRun; ++i) sums[i] = from[i];
      if constexpr (std::is_same_v<Acc, int32_t>) {
        if (args.d_dtype == DType::kI32) {
          finish_run(args, entry, at_row, at_col, sums);
        } else {
          double wide[kRun];
#pragma unroll
          for (int i = 0; i < kRun; ++i) wide[i] = sums[i];
          finish_run(args, entry, at_row, at_col, wide);
        }
      } else {
        finish_run(args, entry, at_row, at_col, sums);
      }
    }
  }
}

}  // namespace cadre::sm80
