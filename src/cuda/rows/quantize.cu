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
  /// By block of 32 rows (mx) or once, then [column % 8][column / 8]: sixteen threads side by side.
  uint32_t amaxes[4][kTileColumns];
  float inverses[4][kTileColumns];
  uint32_t amax_of_tile;
};

__device__ __forceinline__ int slot_of(int col) {
  return col % kSide * kBlocksOfTile + col / kSide;
}

/// 1 / scale of each of a thread's rows. Lanes that share the scales of eight rows make a part of
/// them each, and hand them on.
__device__ __forceinline__ void row_inverses(const QuantizeArguments& args, const Band& band,
                                             const TilePlace& place, int64_t first_col,
                                             const TileMemory& memory, Amaxes& amaxes,
                                             float (&inverses)[kSide]) {
  const Copy& copy = args.rows;
  const int lanes = args.mode == ScaleMode::kMx ? 4 : kBlocksOfTile;
  const bool made_here = args.mode == ScaleMode::kMx || args.mode == ScaleMode::kBlock128;
  if (made_here && !args.square) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) amaxes.rows[i] = largest_of_lanes(amaxes.rows[i], lanes);
  }
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  // The first column of the block that the lanes share.
  const int64_t col = first_col + place.col_block / lanes * lanes * kSide;
  float mine[2] = {1, 1};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = lane + half * lanes;
    if (i >= kSide || place.row(i) >= band.rows || col >= args.width) continue;
    const int64_t at = copy.scales.index(band, place.row(i), col);
    float scale = 0;
    if (made_here) {
      const float amax =
          args.square ? std::bit_cast<float>(memory.amax_of_tile) : chosen(amaxes.rows, i);
      scale = band.group < 0 ? copy.make.of_tail() : copy.make.of(amax);
      // Of a square one thread is enough.
      if (!args.square || threadIdx.x == 0) copy.scales.set(at, scale);
    } else {
      scale = copy.scales.at(at);
    }
    mine[half] = 1 / scale;
  }
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const int source = static_cast<int>(threadIdx.x) % 32 / lanes * lanes + i % lanes;
    inverses[i] = __shfl_sync(0xffffffffu, i < lanes ? mine[0] : mine[1], source);
  }
}

__device__ __forceinline__ void write_rows(const QuantizeArguments& args, const Band& band,
                                           const TilePlace& place, int64_t first_col,
                                           const float (&values)[kSide][kSide], bool finite,
                                           const float (&inverses)[kSide]) {
  const CodeView& codes = args.rows.codes;
  const int64_t col = first_col + place.col();
  if (col >= args.width) return;
  const int count = static_cast<int>(min(args.width - col, int64_t{kSide}));
  uint8_t* to = codes.at(band, place.row(0), col);
#pragma unroll
  for (int i = 0; i < kSide; ++i, to += codes.row_stride) {
    if (place.row(i) >= band.rows) return;
    float scaled[kSide];
#pragma unroll
    for (int j = 0; j < kSide; ++j) scaled[j] = product(values[i][j], inverses[i]);
    store_codes(to, codes.col_stride, count, codes.words, codes_of(codes.dtype, scaled, finite));
  }
}

/// The scales of the columns, and their inverses in shared memory.
__device__ __forceinline__ void make_column_inverses(const QuantizeArguments& args,
                                                     const Band& band, int64_t first_col,
                                                     TileMemory& memory) {
  const Copy& copy = args.columns;
  const bool made_here = args.mode == ScaleMode::kMx || args.mode == ScaleMode::kBlock128;
  const int block = args.mode == ScaleMode::kMx ? 32 : static_cast<int>(kBandRows);
  const int blocks = (band.rows + block - 1) / block;
  for (int i = static_cast<int>(threadIdx.x); i < blocks * kTileColumns; i += kTileThreads) {
    const int q = i / static_cast<int>(kTileColumns);
    const int col = i % static_cast<int>(kTileColumns);
    if (first_col + col >= args.width) continue;
    const int64_t at = copy.scales.index(band, q * block, first_col + col);
    float scale = 0;
    if (made_here) {
      const uint32_t amax = args.square ? memory.amax_of_tile : memory.amaxes[q][slot_of(col)];
      scale = copy.make.of(std::bit_cast<float>(amax));
      if (!args.square || i == 0) copy.scales.set(at, scale);
    } else {
      scale = copy.scales.at(at);
    }
    memory.inverses[q][slot_of(col)] = 1 / scale;
  }
}

/// Codes of the transposed copy go through shared memory and leave it a column at a time.
__device__ __forceinline__ void write_columns(const QuantizeArguments& args, const Band& band,
                                              const TilePlace& place, int64_t first_col,
                                              const float (&values)[kSide][kSide], bool finite,
                                              TileMemory& memory) {
  const CodeView& codes = args.columns.codes;
  const int q = args.mode == ScaleMode::kMx ? place.row_block * kSide / 32 : 0;
#pragma unroll
  for (int j = 0; j < kSide; ++j) {
    const float inverse = memory.inverses[q][j * kBlocksOfTile + place.col_block];
    float scaled[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) scaled[i] = product(values[i][j], inverse);
    memory.codes.at(place.row_block, place.col(j)) = codes_of(codes.dtype, scaled, finite);
  }
  __syncthreads();
  const int rows = codes.in_columns ? (band.rows + 31) / 32 * 32 : band.rows;
  const int row = place.col_block * kSide;
  if (row >= rows) return;
#pragma unroll
  for (int step = 0; step < kSide; ++step) {
    const int col = step * kBlocksOfTile + place.row_block;
    if (first_col + col >= args.width) return;
    uint2 word = memory.codes.at(place.col_block, col);
    // Rows behind the last have no scale, in a block of 32 that has none.
    if (row >= band.rows) word = {0, 0};
    store_codes(codes.at(band, row, first_col + col), codes.row_stride, rows - row, codes.words,
                word);
  }
}

/// The pass before: every amax that a tile has a part of.
__device__ __forceinline__ void raise_amaxes(const QuantizeArguments& args, const Band& band,
                                             const TilePlace& place, int64_t first_col,
                                             Amaxes& amaxes, TileMemory& memory) {
  if (args.mode == ScaleMode::kTensor) {
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kSide; ++i) largest = fmaxf(largest, amaxes.rows[i]);
    largest = largest_of_lanes(largest, 32);
    if (threadIdx.x % 32 == 0) {
      for (const Copy* copy : {&args.rows, &args.columns}) {
        if (copy->given()) copy->scales.raise(copy->scales.index(band, 0, 0), largest);
      }
    }
    return;
  }
  if (args.rows.given()) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      amaxes.rows[i] = largest_of_lanes(amaxes.rows[i], kBlocksOfTile);
    }
    const int i = place.col_block;
    if (i < kSide && place.row(i) < band.rows) {
      args.rows.scales.raise(args.rows.scales.index(band, place.row(i), 0), chosen(amaxes.rows, i));
    }
  }
  if (!args.columns.given()) return;
  for (int col = static_cast<int>(threadIdx.x); col < kTileColumns; col += kTileThreads) {
    if (first_col + col >= args.width) break;
    args.columns.scales.raise(args.columns.scales.index(band, 0, first_col + col),
                              std::bit_cast<float>(memory.amaxes[0][slot_of(col)]));
  }
}

/// 128 registers hold the 64 values and what works on them, but not the gates beside them, nor what
/// converts to FP8 where no instruction does.
#if __CUDA_ARCH__ >= 890
constexpr int kBlocksOfPlain = 2;
#else
constexpr int kBlocksOfPlain = 1;
#endif

template <typename T, bool kActivated>
__global__ void __launch_bounds__(kTileThreads, kActivated ? 1 : kBlocksOfPlain)
    quantize_kernel(const __grid_constant__ QuantizeArguments args) {
  __shared__ TileMemory memory;
  ptx::follow_grid();
  const int64_t stripes = (args.width + kTileColumns - 1) / kTileColumns;
  const TilePlace place;
  const bool mx = args.mode == ScaleMode::kMx;
  const bool in_blocks = mx || args.mode == ScaleMode::kBlock128;
  const bool shares_amaxes = in_blocks || args.amaxes_alone;
  for (int64_t unit = blockIdx.x; unit < args.bands.count * stripes; unit += gridDim.x) {
    const Band band = args.bands.at(unit / stripes);
    const int64_t first_col = unit % stripes * kTileColumns;
    const bool tail = band.group < 0;
    if (band.rows == 0 || (tail && (args.amaxes_alone || !args.rows.given()))) continue;
    const bool columns = args.columns.given() && !tail;

    // The elements, and what the other threads need to know of them.
    float values[kSide][kSide];
    load_values<T, kActivated>(args, band, place, first_col, values);
    Amaxes amaxes(values);
    if (shares_amaxes && (columns || args.square)) {
      for (int i = static_cast<int>(threadIdx.x); i < 4 * kTileColumns; i += kTileThreads) {
        (&memory.amaxes[0][0])[i] = 0;
      }
      if (threadIdx.x == 0) memory.amax_of_tile = 0;
      __syncthreads();
      const int q = mx ? place.row_block * kSide / 32 : 0;
#pragma unroll
      for (int j = 0; j < kSide && columns && !args.square; ++j) {
        atomicMax(&memory.amaxes[q][j * kBlocksOfTile + place.col_block],
                  std::bit_cast<uint32_t>(amaxes.cols[j]));
      }
      if (args.square) {
        float largest = 0;
#pragma unroll
        for (int i = 0; i < kSide; ++i) largest = fmaxf(largest, amaxes.rows[i]);
        largest = largest_of_lanes(largest, 32);
        if (threadIdx.x % 32 == 0) {
          atomicMax(&memory.amax_of_tile, std::bit_cast<uint32_t>(largest));
        }
      }
      __syncthreads();
    }
    if (args.amaxes_alone) {
      raise_amaxes(args, band, place, first_col, amaxes, memory);
      __syncthreads();
      continue;
    }

    if (args.rows.given()) {
      float inverses[kSide];
      row_inverses(args, band, place, first_col, memory, amaxes, inverses);
      if (args.rows.codes.data != nullptr) {
        write_rows(args, band, place, first_col, values, amaxes.finite, inverses);
      }
    }
    if (columns) {
      make_column_inverses(args, band, first_col, memory);
      __syncthreads();
      write_columns(args, band, place, first_col, values, amaxes.finite, memory);
    }
    __syncthreads();  // shared memory is free for the next tile
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
  const int64_t units = args.bands.count * ((args.width + kTileColumns - 1) / kTileColumns);
  if (units == 0) return {};
  // A block for each tile, as far as a grid goes: loads of one hide behind stores of another.
  const cuda::GridShape shape{.blocks = static_cast<unsigned>(std::min<int64_t>(units, INT32_MAX)),
                              .threads = kTileThreads,
                              .after_prologue = true};
  const bool activated = args.activation.kind != ActivationKind::kNone;
  return activated
             ? cuda::launch_kernel(launch, "sm80/quantize", quantize_kernel<T, true>, shape, args)
             : cuda::launch_kernel(launch, "sm80/quantize", quantize_kernel<T, false>, shape, args);
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
  args->fault = launch.fault;
  return make_bands(launch, problem, call.x, call.group_sizes, &args->bands);
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
