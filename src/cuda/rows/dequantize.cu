// dequantize: a block owns a tile of quantize.
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/quantize_tile.cuh"

namespace cadre::rows {
namespace {

struct DequantizeArguments {
  Bands bands;
  CodeView codes;
  ScaleRefs scales;
  bool transposed;
  RowView out;
  int64_t group_stride;  ///< of out, in elements
  int64_t width;
};

template <typename Type>
__device__ __forceinline__ float value_of(const uint2& codes, int i) {
  return fp8_to_float<Type>(byte_of(codes, i));
}

/// Out of shared memory, where a thread's codes lie by column.
template <typename Type>
__device__ __forceinline__ void widen_columns(const TransposedCodes& tile, const TilePlace& place,
                                              int i, float (&values)[kSide]) {
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    values[j] =
        value_of<Type>(const_cast<TransposedCodes&>(tile).at(place.row_block, place.col(j)), i);
  }
}

template <typename Type>
__global__ void __launch_bounds__(kTileThreads, 1)
    dequantize_kernel(const __grid_constant__ DequantizeArguments args) {
  __shared__ TransposedCodes tile;
  ptx::follow_grid();
  const int64_t stripes = (args.width + kTileColumns - 1) / kTileColumns;
  const TilePlace place;
  for (int64_t unit = blockIdx.x; unit < args.bands.count * stripes; unit += gridDim.x) {
    const Band band = args.bands.at(unit / stripes);
    const int64_t first_col = unit % stripes * kTileColumns;
    const int cols = static_cast<int>(min(args.width - first_col, kTileColumns));
    if (band.rows == 0) continue;
    const bool tail = band.group < 0;
    if (args.transposed && !tail) {
      // Columns of eight rows, in the order of memory.
      for (int step = 0; step < kSide; ++step) {
        const int col = step * kBlocksOfTile + place.row_block;
        const int row = place.col_block * kSide;
        if (col >= cols || row >= band.rows) continue;
        tile.at(place.col_block, col) =
            load_codes(args.codes.at(band, row, first_col + col), args.codes.row_stride,
                       band.rows - row, args.codes.words);
      }
      __syncthreads();
    }
    const int left = cols - place.col();
#pragma unroll 1
    for (int i = 0; i < kSide && left > 0; ++i) {
      const int row = place.row(i);
      if (row >= band.rows) break;
      const int64_t col = first_col + place.col();
      const int count = min(left, kSide);
      float values[kSide] = {};
      if (!tail && args.transposed) {
        widen_columns<Type>(tile, place, i, values);
      } else if (!tail) {
        const uint2 codes = load_codes(args.codes.at(band, row, col), args.codes.col_stride, count,
                                       args.codes.words);
#pragma unroll
        for (int j = 0; j < kSide; ++j) values[j] = value_of<Type>(codes, j);
      }
      if (!tail) {
#pragma unroll
        for (int j = 0; j < kSide; ++j) {
          if (j < count) values[j] *= args.scales.at(args.scales.index(band, row, col + j));
        }
      }
      RowView out = args.out;
      const int64_t group_begin = max(band.group, 0) * args.group_stride;
      sm80::with_float_type(out.dtype, [&]<typename T>(T) {
        out.data += group_begin * static_cast<int64_t>(sizeof(T));
      });
      store_columns(out, band.row + row, col, count, values);
    }
    if (args.transposed) __syncthreads();  // all have been read before the next tile
  }
}

}  // namespace

Status launch_dequantize(const cuda::Launch& launch, const plan::Problem& problem,
                         const DequantizeArgs& call) {
  const int64_t width = problem.n;
  if (problem.m == 0 || width == 0) return {};
  Bands bands;
  if (Status status = make_bands(launch, problem, call.x, call.group_sizes, &bands); !status.ok()) {
    return status;
  }
  const bool transposed = call.x.columns;
  TensorView out = call.out;
  const bool weights = out.rank == 3;
  const int64_t group_stride = weights ? out.strides[0] : 0;
  if (weights) {
    out.strides = {out.strides[1], out.strides[2]};
    out.rank = 2;
  }
  DequantizeArguments args{.bands = bands,
                           .codes = CodeView::of(call.x, transposed),
                           .scales = ScaleRefs::of(call.x, problem.lhs_scales, transposed),
                           .transposed = transposed,
                           .out = RowView::of(out),
                           .group_stride = group_stride,
                           .width = width};
  const auto size = static_cast<int64_t>(size_of(out.dtype));
  args.out.vectors = args.out.vectors && group_stride * size % 16 == 0;
  const int64_t units = bands.count * ((width + kTileColumns - 1) / kTileColumns);
  const cuda::GridShape shape{
      .blocks = blocks_for(launch, units), .threads = kTileThreads, .after_prologue = true};
  return call.x.dtype == DType::kE4M3
             ? cuda::launch_kernel(launch, "sm80/dequantize", dequantize_kernel<E4M3>, shape, args)
             : cuda::launch_kernel(launch, "sm80/dequantize", dequantize_kernel<E5M2>, shape, args);
}

}  // namespace cadre::rows
