// permute: a warp copies a row, 16 bytes a lane where addresses allow it. With the rows of each
// token's slots at hand it is the other way round: a warp reads a part of a token once and writes
// it into all of the token's rows. Row by row a token is read top_k times, and between two of them
// the writes have driven it out of the cache.
#include <algorithm>

#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/row_owners.cuh"
#include "cuda/rows/row_view.h"

namespace cadre::rows {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct PermuteArguments {
  RowOwners owners;  ///< slot_row: of the token by token form alone
  const char* x;
  char* out;
  int64_t units;                      ///< of a row
  int64_t x_row_bytes, x_unit_bytes;  ///< from one to the next
  int64_t out_row_bytes, out_unit_bytes;
};

/// Nobody reads a row again before many others have been written.
template <typename Unit>
__device__ __forceinline__ void store_unit(char* to, const Unit& value) {
  if constexpr (sizeof(Unit) == 16) {
    __stcs(reinterpret_cast<Unit*>(to), value);
  } else {
    *reinterpret_cast<Unit*>(to) = value;
  }
}

/// All lanes: x[from], or zeros where `from` is -1. kUnitsAhead loads of a lane are on their way
/// before the first store: nothing tells the compiler that x and out are apart, so it would wait
/// for each.
template <typename Unit, int kUnitsAhead>
__device__ __forceinline__ void copy_row(const PermuteArguments& args, int64_t from, int64_t row) {
  const char* x = args.x + from * args.x_row_bytes;
  char* out = args.out + row * args.out_row_bytes;
  for (int64_t first = threadIdx.x % 32; first < args.units; first += 32 * kUnitsAhead) {
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
      if (unit < args.units) store_unit(out + unit * args.out_unit_bytes, values[i]);
    }
  }
}

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    permute_kernel(const __grid_constant__ PermuteArguments args) {
  ptx::follow_grid();
  const RowOwners& owners = args.owners;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  int64_t index = row < owners.m ? owners.source_row.row_at(row) : -1;
  for (; row < owners.m; row += warps) {
    const int64_t from = checked_row(index, owners.t, owners.fault);
    if (row + warps < owners.m) index = owners.source_row.row_at(row + warps);
    copy_row<Unit, 8>(args, from, row);
  }
}

/// Units of 16 bytes that a lane carries from a token to its rows: 2 KB for a warp.
constexpr int kUnitsCarried = 4;
constexpr int64_t kPart = 32 * kUnitsCarried;

/// A part of a token into the rows that it owns.
__device__ __forceinline__ void spread_part(const PermuteArguments& args, int64_t token,
                                            int64_t first_unit) {
  const int64_t lane = threadIdx.x % 32;
  const char* x = args.x + token * args.x_row_bytes;
  uint4 values[kUnitsCarried];
#pragma unroll
  for (int i = 0; i < kUnitsCarried; ++i) {
    const int64_t unit = first_unit + lane + 32 * i;
    if (unit < args.units) values[i] = *reinterpret_cast<const uint4*>(x + unit * 16);
  }
  const int64_t top_k = args.owners.top_k;
  for (int64_t first = 0; first < top_k; first += 32) {
    const int64_t row_of_lane =
        first + lane < top_k ? args.owners.row_of(token, first + lane) : int64_t{-1};
    for (int j = 0; j < 32 && first + j < top_k; ++j) {
      const int64_t row = __shfl_sync(0xffffffffu, row_of_lane, j);
      if (row < 0) continue;
      char* out = args.out + row * args.out_row_bytes;
#pragma unroll
      for (int i = 0; i < kUnitsCarried; ++i) {
        const int64_t unit = first_unit + lane + 32 * i;
        if (unit < args.units) store_unit(out + unit * 16, values[i]);
      }
    }
  }
}

/// Token by token, in units of 16 bytes; rows that no token owns one by one.
__global__ void __launch_bounds__(kThreads, 4)
    spread_kernel(const __grid_constant__ PermuteArguments args) {
  ptx::follow_grid();
  const RowOwners& owners = args.owners;
  const auto parts = static_cast<uint32_t>((args.units + kPart - 1) / kPart);
  const int64_t all = owners.batches() + owners.t * parts;
  const int64_t warps = int64_t{gridDim.x} * kWarps;
  for (int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; i < all; i += warps) {
    if (i < owners.batches()) {
      owners.each_without_owner(
          i, [&](int64_t row, int64_t token) { copy_row<uint4, 4>(args, token, row); });
      continue;
    }
    const int64_t part = i - owners.batches();
    const int64_t token = part / parts;
    spread_part(args, token, (part - token * parts) * kPart);
  }
}

template <typename Unit>
Status launch_units(const cuda::Launch& launch, const PermuteArguments& args) {
  const int64_t useful = (args.owners.m + kWarps - 1) / kWarps;
  const auto blocks =
      static_cast<unsigned>(std::clamp<int64_t>(useful, 1, int64_t{launch.sm_count} * 16));
  return cuda::launch_kernel(launch, "sm80/permute", permute_kernel<Unit>,
                             {.blocks = blocks, .threads = kThreads, .after_prologue = true}, args);
}

Status launch_spread(const cuda::Launch& launch, const PermuteArguments& args) {
  const int64_t parts = (args.units + kPart - 1) / kPart;
  const int64_t useful = (args.owners.batches() + args.owners.t * parts + kWarps - 1) / kWarps;
  const auto blocks =
      static_cast<unsigned>(std::clamp<int64_t>(useful, 1, int64_t{launch.sm_count} * 16));
  return cuda::launch_kernel(launch, "sm80/permute", spread_kernel,
                             {.blocks = blocks, .threads = kThreads, .after_prologue = true}, args);
}

}  // namespace

Status launch_permute(const cuda::Launch& launch, const PermuteArgs& call) {
  const int64_t m = call.out.shape[0];
  const int64_t width = call.out.shape[1];
  if (m == 0 || width == 0) return {};
  const auto size = static_cast<int64_t>(size_of(call.x.dtype));
  PermuteArguments args{.owners = {.source_row = IndexView::of(call.source_row),
                                   .m = m,
                                   .t = call.x.shape[0],
                                   .fault = launch.fault},
                        .x = static_cast<const char*>(call.x.data),
                        .out = static_cast<char*>(call.out.data),
                        .units = width,
                        .x_row_bytes = call.x.strides[0] * size,
                        .x_unit_bytes = call.x.strides[1] * size,
                        .out_row_bytes = call.out.strides[0] * size,
                        .out_unit_bytes = call.out.strides[1] * size};
  if (in_vectors(call.x) && in_vectors(call.out) && width * size % 16 == 0) {
    args.units = width * size / 16;
    args.x_unit_bytes = args.out_unit_bytes = 16;
    // Not with a slot for each expert, most of them empty.
    if (call.slot_row.given() && args.owners.t * call.slot_row.shape[1] <= 2 * m) {
      args.owners.slot_row = IndexView::of(call.slot_row);
      args.owners.top_k = call.slot_row.shape[1];
      return launch_spread(launch, args);
    }
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
