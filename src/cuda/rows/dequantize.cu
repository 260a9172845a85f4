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
  int64_t stripes;
};

/// A thread's codes: of eight columns for each row, or transposed of eight rows for each column.
struct TileCodes {
  uint2 words[kRows];
  static_assert(kRows == kColumns);

  /// Through shared memory: memory has them a column at a time.
  __device__ __forceinline__ void load_transposed(const DequantizeArguments& args, const Band& band,
                                                  const TilePlace& place, int64_t first_col,
                                                  TransposedCodes& memory) {
    const TransposedPlace from;
    const CodeView& codes = args.codes;
    const uint8_t* const first = codes.at(band, from.row(), first_col + from.first);
#pragma unroll
    for (int step = 0; step < from.kSteps; ++step) {
      if (first_col + from.col(step) >= args.width || from.row() >= band.rows) continue;
      memory.at(from.row_block, from.col(step)) =
          load_codes(first + step * from.kStep * codes.col_stride, codes.row_stride,
                     band.rows - from.row(), codes.words);
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kColumns; ++j) words[j] = memory.at(place.row_block, place.col(j));
  }
  __device__ __forceinline__ void load_rows(const DequantizeArguments& args, const Band& band,
                                            const TilePlace& place, int64_t first_col) {
    const CodeView& codes = args.codes;
    const int64_t col = first_col + place.col();
    const int count = static_cast<int>(min(args.width - col, int64_t{kColumns}));
    const uint8_t* const from = codes.at(band, place.row(0), col);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      words[i] = {};
      if (place.row(i) >= band.rows) continue;
      words[i] = load_codes(from + i * codes.row_stride, codes.col_stride, count, codes.words);
    }
  }

  /// Of a row's columns.
  template <typename Type>
  __device__ __forceinline__ void widen(int i, float (&values)[kColumns]) const {
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      const float2 pair = values_of<Type>((j < 4 ? words[i].x : words[i].y) >> j % 4 * 8);
      values[j] = pair.x;
      values[j + 1] = pair.y;
    }
  }
  template <typename Type>
  __device__ __forceinline__ void widen_transposed(int i, float (&values)[kColumns]) const {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const uint32_t four = i < 4 ? words[j].x : words[j].y;
      const float2 pair = values_of<Type>(four >> i % 4 / 2 * 16);
      values[j] = i % 2 == 0 ? pair.x : pair.y;
    }
  }
};

template <typename Out>
__device__ __forceinline__ void store_row(const RowView& out, int64_t row, int64_t col, int count,
                                          const float (&values)[kColumns]) {
  Out* const to = reinterpret_cast<Out*>(out.data) + row * out.row_stride + col * out.col_stride;
  sm80::store_run(to, out.col_stride, count, out.vectors, values);
}

template <typename Type, typename Out>
__global__ void __launch_bounds__(kTileThreads, 4)
    dequantize_kernel(const __grid_constant__ DequantizeArguments args) {
  __shared__ TransposedCodes memory;
  ptx::follow_grid();
  const TilePlace place;
  const Band band = band_of_block(args.bands);
  if (band.rows == 0) return;
  const int64_t first_col = int64_t{blockIdx.x} * kTileColumns;
  const bool tail = band.group < 0;
  const bool transposed = args.transposed && !tail;
  TileCodes codes{};
  if (transposed) {
    codes.load_transposed(args, band, place, first_col, memory);
  } else if (!tail) {
    codes.load_rows(args, band, place, first_col);
  }
  const int64_t col = first_col + place.col();
  const int count = static_cast<int>(min(args.width - col, int64_t{kColumns}));
  RowView out = args.out;
  out.data += max(band.group, 0) * args.group_stride * static_cast<int64_t>(sizeof(Out));
  // A thread's rows share the scales of a column, or its columns that of a row.
  float of_columns[kColumns] = {};
  if (transposed && place.row(0) < band.rows) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      if (j < count) {
        of_columns[j] = args.scales.at(args.scales.index(band, place.row(0), col + j));
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (place.row(i) >= band.rows || count <= 0) continue;
    float values[kColumns] = {};
    if (transposed) {
      codes.widen_transposed<Type>(i, values);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) values[j] = product(values[j], of_columns[j]);
    } else if (!tail) {
      codes.widen<Type>(i, values);
      const float scale = args.scales.at(args.scales.index(band, place.row(i), col));
#pragma unroll
      for (int j = 0; j < kColumns; ++j) values[j] = product(values[j], scale);
    }
    store_row<Out>(out, band.row + place.row(i), col, count, values);
  }
}

template <typename Type>
Status launch_of(const cuda::Launch& launch, const DequantizeArguments& args) {
  constexpr std::string_view kName = "sm80/dequantize";
  switch (args.out.dtype) {
    case DType::kBF16:
      return launch_tiles(launch, kName, &dequantize_kernel<Type, __nv_bfloat16>, args);
    case DType::kF16:
      return launch_tiles(launch, kName, &dequantize_kernel<Type, __half>, args);
    default:
      return launch_tiles(launch, kName, &dequantize_kernel<Type, float>, args);
  }
}

}  // namespace

Status launch_dequantize(const cuda::Launch& launch, const plan::Problem& problem,
                         const DequantizeArgs& call, const ColumnRoom& room) {
  const int64_t width = problem.n;
  if (problem.m == 0 || width == 0) return {};
  Bands bands;
  if (Status status = make_bands(launch, problem, call.x, call.group_sizes, room, &bands);
      !status.ok()) {
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
                           .width = width,
                           .stripes = (width + kTileColumns - 1) / kTileColumns};
  const auto size = static_cast<int64_t>(size_of(out.dtype));
  args.out.vectors = args.out.vectors && group_stride * size % 16 == 0;
  return call.x.dtype == DType::kE4M3 ? launch_of<E4M3>(launch, args)
                                      : launch_of<E5M2>(launch, args);
}

}  // namespace cadre::rows
