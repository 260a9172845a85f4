// permute: a warp copies a row, 16 bytes a lane where addresses allow it.
#include <algorithm>

#include "cuda/rows/indices.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/row_view.h"

namespace cadre::rows {
namespace {

constexpr int kThreads = 256;

struct PermuteArguments {
  IndexView source_row;
  const char* x;
  char* out;
  int64_t m, t;
  int64_t units;                      ///< of a row
  int64_t x_row_bytes, x_unit_bytes;  ///< from one to the next
  int64_t out_row_bytes, out_unit_bytes;
  int32_t* fault;
};

/// Loads of a lane that are on their way before the first store: nothing tells the compiler that x
/// and out are apart, so it would wait for each.
constexpr int kUnitsAhead = 8;

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(const __grid_constant__ PermuteArguments args) {
  const int64_t lane = threadIdx.x % 32;
  const int64_t warps = int64_t{gridDim.x} * (kThreads / 32);
  int64_t row = int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  int64_t index = row < args.m ? args.source_row.at(row) : -1;
  for (; row < args.m; row += warps) {
    const int64_t from = checked_row(index, args.t, args.fault);
    if (row + warps < args.m) index = args.source_row.at(row + warps);
    const char* x = args.x + from * args.x_row_bytes;
    char* out = args.out + row * args.out_row_bytes;
    for (int64_t first = lane; first < args.units; first += 32 * kUnitsAhead) {
      Unit values[kUnitsAhead] = {};
#pragma unroll
      for (int i = 0; i < kUnitsAhead; ++i) {
        const int64_t unit = first + 32 * i;
        if (from >= 0 && unit < args.units) {
          values[i] = *reinterpret_cast<const Unit*>(x + unit * args.x_unit_bytes);
        }
      }
#pragma unroll
      for (int i = 0; i < kUnitsAhead; ++i) {
        const int64_t unit = first + 32 * i;
        if (unit < args.units) {
          *reinterpret_cast<Unit*>(out + unit * args.out_unit_bytes) = values[i];
        }
      }
    }
  }
}

template <typename Unit>
Status launch_units(const cuda::Launch& launch, const PermuteArguments& args) {
  const int64_t useful = (args.m + kThreads / 32 - 1) / (kThreads / 32);
  const auto blocks =
      static_cast<unsigned>(std::clamp<int64_t>(useful, 1, int64_t{launch.sm_count} * 16));
  return cuda::launch_kernel(launch, "sm80/permute", permute_kernel<Unit>,
                             {.blocks = blocks, .threads = kThreads}, args);
}

}  // namespace

Status launch_permute(const cuda::Launch& launch, const PermuteArgs& call) {
  const int64_t m = call.out.shape[0];
  const int64_t width = call.out.shape[1];
  if (m == 0 || width == 0) return {};
  const auto size = static_cast<int64_t>(size_of(call.x.dtype));
  PermuteArguments args{.source_row = IndexView::of(call.source_row),
                        .x = static_cast<const char*>(call.x.data),
                        .out = static_cast<char*>(call.out.data),
                        .m = m,
                        .t = call.x.shape[0],
                        .units = width,
                        .x_row_bytes = call.x.strides[0] * size,
                        .x_unit_bytes = call.x.strides[1] * size,
                        .out_row_bytes = call.out.strides[0] * size,
                        .out_unit_bytes = call.out.strides[1] * size,
                        .fault = launch.fault};
  if (in_vectors(call.x) && in_vectors(call.out) && width * size % 16 == 0) {
    args.units = width * size / 16;
    args.x_unit_bytes = args.out_unit_bytes = 16;
    return launch_units<uint4>(launch, args);
  }
  switch (size) {
    case 1:
      return launch_units<uint8_t>(launch, args);
    case 2:
      return launch_units<uint16_t>(launch, args);
    case 4:
      return launch_units<uint32_t>(launch, args);
    default:
      return launch_units<uint64_t>(launch, args);
  }
}

}  // namespace cadre::rows
