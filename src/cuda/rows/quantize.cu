// quantize and amax: a block owns a tile of 128 x 128, reads it once into registers and writes both
// of its copies. Blocks of scales lie within a tile. Scales that don't (tensor, row) are amaxes
// first, raised in place by a pass over the tiles before, then turned into scales.
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/quantize_values.cuh"

namespace cadre::rows {
namespace {

struct TileMemory {
  TransposedCodes codes;
  float amaxes[kTileWarps][kTileColumns];  ///< of the columns of each warp's rows
  float inverses[4][kTileColumns];         ///< by block of 32 rows (mx) or once
  uint32_t amax_of_tile;
};

/// The largest of the whole tile, by all threads.
__device__ __forceinline__ float largest_of_tile(TileMemory& memory, const ColumnAmaxes& amaxes) {
  if (threadIdx.x == 0) memory.amax_of_tile = 0;
  __syncthreads();
  const float largest = largest_of_lanes(amaxes.largest());
  if (threadIdx.x % 32 == 0) atomicMax(&memory.amax_of_tile, std::bit_cast<uint32_t>(largest));
  __syncthreads();
  return std::bit_cast<float>(memory.amax_of_tile);
}

/// 1 / scale of the row that row_of_lane() names, whose scale this lane makes or reads.
__device__ __forceinline__ float row_inverse(const QuantizeArguments& args, const Band& band,
                                             const TilePlace& place, int64_t first_col,
                                             float amax_of_tile, const TileValues& values,
                                             bool finite) {
  const Copy& copy = args.rows;
  const bool mx = args.mode == ScaleMode::kMx;
  const bool made_here = mx || args.mode == ScaleMode::kBlock128;
  const float amax =
      made_here && !args.square ? largest_of_rows(values, finite, !mx) : amax_of_tile;
  // The first column of the block that the lanes share.
  const int64_t col = first_col + (mx ? place.col() / 32 * 32 : 0);
  const int row = place.row(row_of_lane());
  if (row >= band.rows || col >= args.width) return 1;
  const int64_t at = copy.scales.index(band, row, col);
  if (!made_here) return 1 / copy.scales.at(at);
  const float scale = band.group < 0 ? copy.make.of_tail() : copy.make.of(amax);
  // One of the lanes that share it; of a square one thread of all.
  const uint32_t others = args.square ? threadIdx.x : threadIdx.x % (mx ? 8 : 32) / 8;
  if (others == 0) copy.scales.set(at, scale);
  return 1 / scale;
}

__device__ __forceinline__ void write_rows(const QuantizeArguments& args, const Band& band,
                                           const TilePlace& place, int64_t first_col,
                                           const TileValues& values, bool finite, float inverse) {
  const CodeView& codes = args.rows.codes;
  const int64_t col = first_col + place.col();
  const int count = static_cast<int>(min(args.width - col, int64_t{kColumns}));
  uint8_t* const to = codes.at(band, place.row(0), col);
  with_fp8(codes.dtype, [&]<typename Type>(Type) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float of = of_row(inverse, i);
      float scaled[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) scaled[j] = product(values[i][j], of);
      if (place.row(i) < band.rows) {
        store_codes(to + i * codes.row_stride, codes.col_stride, count, codes.words,
                    codes_of<Type>(scaled, finite));
      }
    }
  });
}

/// The scales of the columns, and their inverses in shared memory.
__device__ __forceinline__ void make_column_inverses(const QuantizeArguments& args,
                                                     const Band& band, int64_t first_col,
                                                     float amax_of_tile, TileMemory& memory) {
  const Copy& copy = args.columns;
  const bool mx = args.mode == ScaleMode::kMx;
  const bool made_here = mx || args.mode == ScaleMode::kBlock128;
  const int q = static_cast<int>(threadIdx.x) / kTileColumns;  // a block of rows
  const int col = static_cast<int>(threadIdx.x) % kTileColumns;
  const int block = mx ? 32 : static_cast<int>(kBandRows);
  if (q * block >= band.rows || first_col + col >= args.width) return;
  const int64_t at = copy.scales.index(band, q * block, first_col + col);
  float scale = 0;
  if (made_here) {
    float amax = amax_of_tile;
    if (!args.square) {
      amax = 0;
      const int warps = block / kRows;
      for (int i = 0; i < warps; ++i) amax = fmaxf(amax, memory.amaxes[q * warps + i][col]);
    }
    scale = copy.make.of(amax);
    if (!args.square || threadIdx.x == 0) copy.scales.set(at, scale);
  } else {
    scale = copy.scales.at(at);
  }
  memory.inverses[q][col] = 1 / scale;
}

/// Codes of the transposed copy go through shared memory and leave it a column at a time.
__device__ __forceinline__ void write_columns(const QuantizeArguments& args, const Band& band,
                                              const TilePlace& place, int64_t first_col,
                                              const TileValues& values, bool finite,
                                              TileMemory& memory) {
  const CodeView& codes = args.columns.codes;
  const int q = args.mode == ScaleMode::kMx ? place.row(0) / 32 : 0;
  with_fp8(codes.dtype, [&]<typename Type>(Type) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const float inverse = memory.inverses[q][place.col(j)];
      float upper[4];
      float lower[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        upper[i] = product(values[i][j], inverse);
        lower[i] = product(values[i + 4][j], inverse);
      }
      memory.codes.at(place.row_block, place.col(j)) = {codes_of<Type>(upper, finite),
                                                        codes_of<Type>(lower, finite)};
    }
  });
  __syncthreads();
  const int rows = codes.in_columns ? (band.rows + 31) / 32 * 32 : band.rows;
  const TransposedPlace to;
  if (to.row() >= rows) return;
  uint8_t* const first = codes.at(band, to.row(), first_col + to.first);
#pragma unroll
  for (int step = 0; step < kTileColumns / 32; ++step) {
    if (first_col + to.col(step) >= args.width) return;
    uint2 word = memory.codes.at(to.row_block, to.col(step));
    // Rows behind the last have no scale, in a block of 32 that has none.
    if (to.row() >= band.rows) word = {0, 0};
    store_codes(first + step * 32 * codes.col_stride, codes.row_stride, rows - to.row(),
                codes.words, word);
  }
}

/// The pass before: every amax that a tile has a part of.
__device__ __forceinline__ void raise_amaxes(const QuantizeArguments& args, const Band& band,
                                             const TilePlace& place, int64_t first_col,
                                             const TileValues& values, const ColumnAmaxes& amaxes,
                                             TileMemory& memory) {
  if (args.mode == ScaleMode::kTensor) {
    const float largest = largest_of_tile(memory, amaxes);
    if (threadIdx.x == 0) {
      for (const Copy* copy : {&args.rows, &args.columns}) {
        if (copy->given()) copy->scales.raise(copy->scales.index(band, 0, 0), largest);
      }
    }
    return;
  }
  if (args.rows.given()) {
    const float amax = largest_of_rows(values, amaxes.finite, true);
    const int row = place.row(row_of_lane());
    if (place.col_block < kRows && row < band.rows) {
      args.rows.scales.raise(args.rows.scales.index(band, row, 0), amax);
    }
  }
  if (!args.columns.given()) return;
  __syncthreads();  // the warps' amaxes are there
  const int col = static_cast<int>(threadIdx.x);
  if (col >= kTileColumns || first_col + col >= args.width) return;
  float amax = 0;
  for (const auto& of_warp : memory.amaxes) amax = fmaxf(amax, of_warp[col]);
  args.columns.scales.raise(args.columns.scales.index(band, 0, first_col + col), amax);
}

/// Two blocks fit a multiprocessor, but for what converts to FP8 where no instruction does.
#if __CUDA_ARCH__ >= 890
constexpr int kBlocks = 2;
#else
constexpr int kBlocks = 1;
#endif

template <typename T, bool kActivated>
__global__ void __launch_bounds__(kTileThreads, kActivated ? 1 : kBlocks)
    quantize_kernel(const __grid_constant__ QuantizeArguments args) {
  __shared__ TileMemory memory;
  ptx::follow_grid();
  const TilePlace place;
  const Band band = band_of_block(args.bands);
  if (band.rows == 0) return;
  const int64_t first_col = int64_t{blockIdx.x} * kTileColumns;
  const bool tail = band.group < 0;
  if (tail && (args.amaxes_alone || !args.rows.given())) return;
  const bool columns = args.columns.given() && !tail;

  // The elements, and what the other threads need to know of them.
  TileValues values;
  load_values<T, kActivated>(args, band, place, first_col, values);
  const ColumnAmaxes amaxes(values);
  const bool finite = amaxes.finite;
  if (columns && !args.square && args.mode != ScaleMode::kTensor) {
    *reinterpret_cast<float4*>(&memory.amaxes[place.row_block][place.col()]) = {
        amaxes.of[0], amaxes.of[1], amaxes.of[2], amaxes.of[3]};
  }
  if (args.amaxes_alone) {
    raise_amaxes(args, band, place, first_col, values, amaxes, memory);
    return;
  }
  const float amax_of_tile = args.square ? largest_of_tile(memory, amaxes) : 0.0f;
  if (args.rows.given()) {
    const float inverse = row_inverse(args, band, place, first_col, amax_of_tile, values, finite);
    if (args.rows.codes.data != nullptr) {
      write_rows(args, band, place, first_col, values, finite, inverse);
    }
  }
  if (columns) {
    __syncthreads();  // the warps' amaxes are there
    make_column_inverses(args, band, first_col, amax_of_tile, memory);
    __syncthreads();
    write_columns(args, band, place, first_col, values, finite, memory);
  }
}

/// Scales of the modes tensor and row: f32 in one or two dims.
struct ScalePlane {
  float* data;
  int64_t sizes[2];
  int64_t strides[2];
  ScaleMaker make;
  bool finish;          ///< amaxes become scales; else all become 0
  const int64_t* tail;  ///< the first row behind the last group, of scales by row; or null
};

__global__ void __launch_bounds__(kTileThreads)
    scale_plane_kernel(const __grid_constant__ ScalePlane plane) {
  ptx::follow_grid();
  const int64_t count = plane.sizes[0] * plane.sizes[1];
  for (int64_t i = int64_t{blockIdx.x} * kTileThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kTileThreads) {
    const int64_t row = i / plane.sizes[1];
    float& scale = plane.data[row * plane.strides[0] + i % plane.sizes[1] * plane.strides[1]];
    const bool tail = plane.tail != nullptr && row >= *plane.tail;
    scale = !plane.finish ? 0.0f : tail ? plane.make.of_tail() : plane.make.of(scale);
  }
}

Status launch_plane(const cuda::Launch& launch, const ScaledTensor& tensor, const Copy& copy,
                    bool finish, const int64_t* tail) {
  const TensorView& values = tensor.scales.values;
  if (!tensor.given() || values.data == nullptr) return {};
  const bool plane = values.rank == 2;
  const bool by_row = tensor.scales.mode == ScaleMode::kRow && !plane;
  const ScalePlane args{.data = static_cast<float*>(values.data),
                        .sizes = {values.shape[0], plane ? values.shape[1] : 1},
                        .strides = {values.strides[0], plane ? values.strides[1] : 0},
                        .make = copy.make,
                        .finish = finish,
                        .tail = by_row ? tail : nullptr};
  const int64_t count = args.sizes[0] * args.sizes[1];
  if (count == 0) return {};
  return cuda::launch_kernel(
      launch, "sm80/quantize scales", scale_plane_kernel,
      {.blocks = blocks_for(launch, (count + kTileThreads - 1) / kTileThreads),
       .threads = kTileThreads,
       .after_prologue = true},
      args);
}

template <typename T>
Status launch_tiles_of(const cuda::Launch& launch, const QuantizeArguments& args) {
  const bool activated = args.activation.kind != ActivationKind::kNone;
  return launch_tiles(launch, "sm80/quantize",
                      activated ? &quantize_kernel<T, true> : &quantize_kernel<T, false>, args);
}

Status launch_tiles(const cuda::Launch& launch, DType dtype, const QuantizeArguments& args) {
  switch (dtype) {
    case DType::kBF16:
      return launch_tiles_of<__nv_bfloat16>(launch, args);
    case DType::kF16:
      return launch_tiles_of<__half>(launch, args);
    default:
      return launch_tiles_of<float>(launch, args);
  }
}

/// Everything but the copies.
Status source_of(const cuda::Launch& launch, const plan::Problem& problem, const QuantizeArgs& call,
                 QuantizeArguments* args) {
  TensorView x = call.x;
  const bool weights = x.rank == 3;
  if (weights) {
    args->x_group_stride = x.strides[0];
    x.rank = 2;
    x.shape = {problem.m, x.shape[2]};
    x.strides = {x.strides[1], x.strides[2]};
  }
  args->x = GateViews::of(x, call.activation, problem.n);
  const auto size = static_cast<int64_t>(size_of(x.dtype));
  args->x.gate.vectors = args->x.gate.vectors && args->x_group_stride * size % 16 == 0;
  args->num_sources = call.x.shape[0];
  if (call.source_row.given()) args->source_row = IndexView::of(call.source_row);
  if (call.row_scale.given()) {
    const TensorView& scale = call.row_scale;
    args->row_scale = {.data = static_cast<char*>(scale.data),
                       .row_stride = scale.strides[0],
                       .dtype = scale.dtype};
  }
  args->activation = call.activation;
  args->width = problem.n;
  args->stripes = (problem.n + kTileColumns - 1) / kTileColumns;
  args->fault = launch.fault;
  return make_bands(launch, problem, call.x, call.group_sizes, {}, &args->bands);
}

Status launch_all(const cuda::Launch& launch, const plan::Problem& problem,
                  const QuantizeArgs& call, QuantizeArguments* args) {
  if (Status status = source_of(launch, problem, call, args); !status.ok()) return status;
  const ScaledTensor* const tensors[] = {&call.rows, &call.columns};
  const Copy* const copies[] = {&args->rows, &args->columns};
  args->mode = call.rows.given() ? call.rows.scales.mode : call.columns.scales.mode;
  args->square = args->bands.weights && args->mode == ScaleMode::kBlock128;
  const bool in_blocks = args->mode == ScaleMode::kBlock128 || args->mode == ScaleMode::kMx;
  const auto planes = [&](bool finish) -> Status {
    for (int i = 0; i < 2; ++i) {
      if (Status status =
              launch_plane(launch, *tensors[i], *copies[i], finish, args->bands.tail_begin);
          !status.ok()) {
        return status;
      }
    }
    return {};
  };
  if (!in_blocks) {
    if (Status status = planes(false); !status.ok()) return status;
    args->amaxes_alone = true;
    if (Status status = launch_tiles(launch, call.x.dtype, *args); !status.ok()) return status;
    args->amaxes_alone = false;
    if (Status status = planes(true); !status.ok()) return status;
  }
  const bool codes = args->rows.codes.data != nullptr || args->columns.codes.data != nullptr;
  if (!codes && !in_blocks) return {};
  return launch_tiles(launch, call.x.dtype, *args);
}

}  // namespace

Status launch_quantize(const cuda::Launch& launch, const plan::Problem& problem,
                       const QuantizeArgs& call) {
  QuantizeArguments args{};
  args.rows = Copy::of(call.rows, problem.lhs_scales, false, ScaleMaker::of(call, call.rows));
  args.columns =
      Copy::of(call.columns, problem.rhs_scales, true, ScaleMaker::of(call, call.columns));
  return launch_all(launch, problem, call, &args);
}

Status launch_amax(const cuda::Launch& launch, const plan::Problem& problem, const AmaxArgs& call) {
  QuantizeArguments args{};
  const QuantizeArgs as_quantize{.x = call.x,
                                 .group_sizes = call.group_sizes,
                                 .rows = ScaledTensor(call.x, Scales(call.mode, call.out))};
  args.rows = Copy::of(as_quantize.rows, problem.lhs_scales, false, {});
  args.rows.codes = {};
  return launch_all(launch, problem, as_quantize, &args);
}

}  // namespace cadre::rows
