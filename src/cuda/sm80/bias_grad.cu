// bias_grad: sums over a group's rows for each column (dbias), and over the columns for each row
// (dbias_scale), both in ascending order, so that the same call always gives the same bits.
#include <algorithm>

#include "cuda/carried_words.h"
#include "cuda/group_inputs.h"
#include "cuda/sm80/elements.cuh"
#include "cuda/sm80/launchers.h"

namespace cadre::sm80 {
namespace {

struct BiasGradArguments {
  const int64_t* offsets = nullptr;
  int64_t num_groups = 0;
  int64_t m = 0;
  int64_t n = 0;
  const char* dy = nullptr;
  int64_t dy_row_stride = 0;
  int64_t dy_col_stride = 1;
  VectorArguments bias_scale{};
  TensorArguments dbias{}, bias{};
  char* dbias_scale = nullptr;
  int64_t dbias_scale_stride = 1;
  DType dy_dtype = DType::kF32;
  DType dbias_dtype = DType::kF32;
  DType bias_dtype = DType::kF32;
  DType dbias_scale_dtype = DType::kF32;
  bool accumulate = false;
};

constexpr int kThreads = 128;

__device__ char* vector_of(const TensorArguments& tensor, int64_t group) {
  if (tensor.placement == Placement::kList) return static_cast<char*>(tensor.pointers[group]);
  return tensor.data + group * tensor.group_stride * tensor.element_bytes;
}

template <typename Compute>
__device__ void store_element(char* data, DType dtype, int64_t index, Compute value) {
  with_float_type(dtype,
                  [&]<typename T>(T) { reinterpret_cast<T*>(data)[index] = narrow<T>(value); });
}

/// A thread owns one column of one group.
template <typename Compute>
__global__ void __launch_bounds__(kThreads)
    dbias_kernel(const __grid_constant__ BiasGradArguments args) {
  const int64_t blocks_of_group = (args.n + kThreads - 1) / kThreads;
  for (int64_t block = blockIdx.x; block < blocks_of_group * args.num_groups; block += gridDim.x) {
    const int64_t group = block / blocks_of_group;
    const int64_t col = block % blocks_of_group * kThreads + threadIdx.x;
    if (col >= args.n) continue;
    char* out = vector_of(args.dbias, group);
    const int64_t at = col * args.dbias.col_stride;
    Compute sum = args.accumulate ? load_element<Compute>(out, args.dbias_dtype, at) : Compute{};
    const int64_t end = args.offsets[group + 1];
    with_float_type(args.dy_dtype, [&]<typename T>(T) {
      const T* dy = reinterpret_cast<const T*>(args.dy) + col * args.dy_col_stride;
#pragma unroll 8
      for (int64_t row = args.offsets[group]; row < end; ++row) {
        Compute value = widen<Compute>(dy[row * args.dy_row_stride]);
        if (args.bias_scale.data != nullptr) {
          value *= load_element<Compute>(args.bias_scale.data, args.bias_scale.dtype,
                                         row * args.bias_scale.stride);
        }
        sum += value;
      }
    });
    store_element(out, args.dbias_dtype, at, sum);
  }
}

/// The local group of a row; -1 for tail and foreign rows.
__device__ int64_t group_of_row(const BiasGradArguments& args, int64_t row) {
  if (row < args.offsets[0] || row >= args.offsets[args.num_groups]) return -1;
  int64_t low = 0;
  int64_t high = args.num_groups;  // offsets[low] <= row < offsets[high]
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (args.offsets[middle] <= row ? low : high) = middle;
  }
  return low;
}

/// A warp owns 32 rows, a lane sums one of them; squares of 32x32 elements pass through shared
/// memory so that reads stay along the rows.
template <typename Compute>
__global__ void __launch_bounds__(kThreads)
    dbias_scale_kernel(const __grid_constant__ BiasGradArguments args) {
  __shared__ Compute squares[kThreads / 32][32][33];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Compute(&square)[32][33] = squares[threadIdx.x / 32];
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  const int64_t warp = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  for (int64_t first = warp * 32; first < args.m; first += warps * 32) {
    const int64_t row = first + lane;
    const int64_t group = row < args.m ? group_of_row(args, row) : -1;
    const uint32_t covered = __ballot_sync(0xffffffffu, group >= 0);
    const char* bias = group >= 0 ? vector_of(args.bias, group) : nullptr;
    Compute sum{};
    for (int64_t begin = 0; begin < args.n; begin += 32) {
      const int width = static_cast<int>(min(args.n - begin, int64_t{32}));
      __syncwarp();
      with_float_type(args.dy_dtype, [&]<typename T>(T) {
        for (int i = 0; i < 32; ++i) {
          // Tail and foreign rows are never read.
          if (lane >= width || (covered >> i & 1u) == 0) continue;
          square[i][lane] = widen<Compute>(reinterpret_cast<const T*>(
              args.dy)[(first + i) * args.dy_row_stride + (begin + lane) * args.dy_col_stride]);
        }
      });
      __syncwarp();
      if (group < 0) continue;
      with_float_type(args.bias_dtype, [&]<typename T>(T) {
        const T* from = reinterpret_cast<const T*>(bias) + begin * args.bias.col_stride;
        for (int i = 0; i < width; ++i) {
          sum += square[lane][i] * widen<Compute>(from[i * args.bias.col_stride]);
        }
      });
    }
    if (row < args.m) {
      store_element(args.dbias_scale, args.dbias_scale_dtype, row * args.dbias_scale_stride, sum);
    }
  }
}

TensorArguments vectors(const GroupedTensor& tensor, cuda::CarriedWords* words) {
  return {.placement = tensor.placement,
          .element_bytes = static_cast<int32_t>(size_of(tensor.dtype)),
          .data = static_cast<char*>(tensor.data),
          .pointers = words->add_list(tensor),
          .group_stride = tensor.group_stride,
          .col_stride = tensor.col_stride};
}

template <typename Compute>
Status launch_sums(const cuda::Launch& launch, const BiasGradArguments& args, bool has_dbias) {
  const auto blocks = [&launch](int64_t useful) {
    return static_cast<unsigned>(std::clamp<int64_t>(useful, 1, int64_t{launch.sm_count} * 16));
  };
  if (has_dbias && args.num_groups > 0 && args.n > 0) {
    const int64_t useful = (args.n + kThreads - 1) / kThreads * args.num_groups;
    Status status = cuda::launch_kernel(launch, "sm80/dbias", dbias_kernel<Compute>,
                                        {.blocks = blocks(useful), .threads = kThreads}, args);
    if (!status.ok()) return status;
  }
  if (args.dbias_scale == nullptr || args.m == 0) return {};
  return cuda::launch_kernel(
      launch, "sm80/dbias_scale", dbias_scale_kernel<Compute>,
      {.blocks = blocks((args.m + kThreads - 1) / kThreads), .threads = kThreads}, args);
}

}  // namespace

Status launch_bias_grad(const cuda::Launch& launch, const plan::Problem& problem,
                        const BiasGradArgs& call, const std::vector<int64_t>& host_offsets) {
  cuda::CarriedWords words(launch);
  const cuda::GroupInputs inputs = cuda::group_inputs(launch, problem, call.group_sizes,
                                                      host_offsets, call.group_offset, &words);
  BiasGradArguments args{.offsets = launch.workspace.offsets(),
                         .num_groups = problem.num_local_groups,
                         .m = problem.m,
                         .n = problem.n,
                         .dy = static_cast<const char*>(call.dy.data),
                         .dy_row_stride = call.dy.strides[0],
                         .dy_col_stride = call.dy.strides[1]};
  if (call.bias_scale.given()) {
    args.bias_scale = {static_cast<const char*>(call.bias_scale.data), call.bias_scale.strides[0],
                       call.bias_scale.dtype};
  }
  args.dbias = vectors(call.dbias, &words);
  args.bias = vectors(call.bias, &words);
  if (call.dbias_scale.given()) {
    args.dbias_scale = static_cast<char*>(call.dbias_scale.data);
    args.dbias_scale_stride = call.dbias_scale.strides[0];
  }
  args.dy_dtype = call.dy.dtype;
  args.dbias_dtype = call.dbias.dtype;
  args.bias_dtype = call.bias.dtype;
  args.dbias_scale_dtype = call.dbias_scale.dtype;
  args.accumulate = call.accumulate;
  if (Status status = words.send(); !status.ok()) return status;
  if (Status status = cuda::scan_offsets(launch, inputs); !status.ok()) return status;
  return problem.compute == DType::kF64 ? launch_sums<double>(launch, args, call.dbias.given())
                                        : launch_sums<float>(launch, args, call.dbias.given());
}

}  // namespace cadre::sm80
