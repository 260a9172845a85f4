// quantize and amax: a block owns a tile of 128 x 128, reads it once into registers and writes both
// of its copies. Blocks of scales lie within a tile. Scales that don't (tensor, row) are amaxes
// first, raised in place by a pass over the tiles before, then turned into scales.
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/quantize_load.cuh"
#include "cuda/rows/quantize_scales.cuh"

namespace cadre::rows {
namespace {

/// f(Type{}, finite) with E4M3 or E5M2. `finite` is a constant in it where the registers allow
/// twice the code: not of values in f32.
template <typename T, typename F>
__device__ __forceinline__ void with_codes(DType dtype, bool finite, F f) {
  with_fp8(dtype, [&]<typename Type>(Type type) {
    if constexpr (sizeof(T) == 2) {
      with_constant(finite, [&](auto known) { f(type, known); });
    } else {
      f(type, finite);
    }
  });
}

template <typename T>
__device__ __forceinline__ void write_rows(const QuantizeArguments& args, const Band& band,
                                           const TilePlace& place, int64_t first_col,
                                           const TileValues<T>& values, bool finite,
                                           const TwoRows& inverses) {
  const CodeView& codes = args.rows.codes;
  const int64_t col = first_col + place.col();
  const int count = static_cast<int>(min(args.width - col, int64_t{kColumns}));
  uint8_t* const to = codes.at(band, place.row(0), col);
  with_codes<T>(codes.dtype, __all_sync(0xffffffffu, finite), [&]<typename Type>(Type, auto known) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float inverse = inverses.row(i);
      float scaled[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) scaled[j] = product(values.at(i, j), inverse);
      if (place.row(i) < band.rows) {
        store_codes(to + i * codes.row_stride, codes.col_stride, count, codes.words,
                    codes_of<Type>(scaled, known));
      }
    }
  });
}

/// Codes of the transposed copy go through shared memory and leave it a column at a time.
template <typename T>
__device__ __forceinline__ void write_columns(const QuantizeArguments& args, const Band& band,
                                              const TilePlace& place, int64_t first_col,
                                              const TileValues<T>& values, bool finite,
                                              TileMemory<T>& memory) {
  const CodeView& codes = args.columns.codes;
  const int q = args.mode == ScaleMode::kMx ? place.row(0) / 32 : 0;
  with_codes<T>(codes.dtype, finite, [&]<typename Type>(Type, auto known) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 four = memory.inverses[q][half][place.col_block];
      const float inverses[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int col = 4 * half + j;
        float scaled[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) scaled[i] = product(values.at(i, col), inverses[j]);
        memory.codes.at(place.row_block, place.col(col)) = codes_of<Type>(scaled, known);
      }
    }
  });
  __syncthreads();
  const int rows = codes.in_columns ? (band.rows + 31) / 32 * 32 : band.rows;
  const TransposedPlace to;
  if (to.row() >= rows) return;
  uint8_t* const first = codes.at(band, to.row(), first_col + to.first);
#pragma unroll
  for (int step = 0; step < to.kSteps; ++step) {
    if (first_col + to.col(step) >= args.width) return;
    uint2 word = memory.codes.at(to.row_block, to.col(step));
    // Rows behind the last have no scale, in a block of 32 that has none.
    if (to.row() >= band.rows) word = {0, 0};
    store_codes(first + step * to.kStep * codes.col_stride, codes.row_stride, rows - to.row(),
                codes.words, word);
  }
}

/// How many blocks fit a multiprocessor: what is computed is held in f32, in twice the registers,
/// and where no instruction converts to FP8, that takes them.
template <typename Held>
constexpr int kBlocks = (sizeof(Held) == 2 ? 2 : 1) *
#if __CUDA_ARCH__ >= 890
                        2;
#else
                        1;
#endif

/// `kComputed`: of activations, or of rows times their scales; else of x as it is.
template <typename T, bool kComputed>
__global__ void __launch_bounds__(kTileThreads, kBlocks<std::conditional_t<kComputed, float, T>>)
    quantize_kernel(const __grid_constant__ QuantizeArguments args) {
  using Held = std::conditional_t<kComputed, float, T>;
  __shared__ TileMemory<Held> memory;
  ptx::follow_grid();
  const TilePlace place;
  const Band band = band_of_block(args.bands);
  if (band.rows == 0) return;
  const int64_t first_col = int64_t{blockIdx.x} * kTileColumns;
  const bool tail = band.group < 0;
  if (tail && (args.amaxes_alone || !args.rows.given())) return;
  const bool columns = args.columns.given() && !tail;

  // The elements, and what the other threads need to know of them.
  TileValues<Held> values;
  if constexpr (kComputed) {
    load_computed<T>(args, band, place, first_col, values);
  } else {
    load_values<T>(args, band, place, first_col, values);
  }
  const ColumnAmaxes<Held> amaxes(values);
  const bool finite = amaxes.finite;
  if (columns && !args.square && args.mode != ScaleMode::kTensor) {
    constexpr int kWords = TileValues<Held>::kWords;
#pragma unroll
    for (int w = 0; w < kWords; w += 4) {
      *reinterpret_cast<uint4*>(&memory.amaxes[place.row_block][place.col_block * kWords + w]) = {
          amaxes.words[w], amaxes.words[w + 1], amaxes.words[w + 2], amaxes.words[w + 3]};
    }
  }
  if (args.amaxes_alone) {
    raise_amaxes(args, band, place, first_col, values, amaxes, memory);
    return;
  }
  const float amax_of_tile = args.square ? largest_of_tile(memory, amaxes) : 0.0f;
  if (args.rows.given()) {
    const TwoRows inverses =
        row_inverses(args, band, place, first_col, amax_of_tile, values, finite);
    if (args.rows.codes.data != nullptr) {
      write_rows(args, band, place, first_col, values, finite, inverses);
    }
  }
  if (columns) {
    __syncthreads();  // the amaxes of all blocks of rows are there
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
  const bool computed =
      args.activation.kind != ActivationKind::kNone || args.row_scale.data != nullptr;
  return launch_tiles(launch, "sm80/quantize",
                      computed ? &quantize_kernel<T, true> : &quantize_kernel<T, false>, args);
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
