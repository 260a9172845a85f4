// See grouped_maps.h.
#include "cuda/sm90/grouped_maps.h"

#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/tensor_map_replace.cuh"

namespace cadre::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxExtent = int64_t{1} << 30;       // coordinates of the copy engine
constexpr int64_t kMaxStrideBytes = int64_t{1} << 40;  // the copy engine's own limit

enum class Which : int { kA, kB, kOut, kC };
constexpr int kMatrices = 4;

struct StoredMatrix {
  const char* data;
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
};

__device__ __forceinline__ StoredMatrix matrix_of(const GroupedMapsArguments& args,
                                                  const sm80::GroupEntry& entry, Which which) {
  switch (which) {
    case Which::kA:
      return {entry.a, args.transpose_a ? entry.k : entry.m, args.transpose_a ? entry.m : entry.k,
              entry.a_row_stride};
    case Which::kB:
      return {entry.b, args.transpose_b ? entry.n : entry.k, args.transpose_b ? entry.k : entry.n,
              entry.b_row_stride};
    case Which::kOut:
      return {entry.d, entry.m, entry.n, entry.d_row_stride};
    default:
      return {entry.c, entry.m, entry.n, entry.c_row_stride};
  }
}

__device__ __forceinline__ CUtensorMap* map_of(GroupedMaps& maps, Which which) {
  CUtensorMap* const all[] = {&maps.a, &maps.b, &maps.out, &maps.c};
  return all[static_cast<int>(which)];
}

// Whether any tile of the group reads or writes the matrix.
__device__ __forceinline__ bool is_used(const GroupedMapsArguments& args,
                                        const sm80::GroupEntry& entry, Which which) {
  if (entry.m == 0 || entry.n == 0) return false;
  if (which == Which::kC) return args.reads_c && entry.beta != 0.0;
  return which == Which::kOut || entry.k > 0;
}

// Makes the map of one matrix. False when the copy engine can't take it; the map must not be used
// then.
__device__ __forceinline__ bool make_map(const GroupedMapsArguments& args,
                                         const sm80::GroupEntry& entry, Which which,
                                         CUtensorMap* map) {
  if (!is_used(args, entry, which)) return true;
  const bool is_operand = which == Which::kA || which == Which::kB;
  const StoredMatrix matrix = matrix_of(args, entry, which);
  if (max(matrix.rows, matrix.columns) > kMaxExtent) return false;
  const int64_t element_bytes = is_operand ? args.operand_element_bytes : args.out_element_bytes;
  const int64_t row_bytes = matrix.columns * element_bytes;
  // The only row of a matrix may be any distance from the next.
  const int64_t stride = matrix.rows > 1 ? matrix.row_stride : (matrix.columns + 15) / 16 * 16;
  if (stride < matrix.columns || stride >= kMaxStrideBytes / 4) return false;
  if (stride * element_bytes % 16 != 0 || reinterpret_cast<uint64_t>(matrix.data) % 16 != 0) {
    return false;
  }
  // It writes whole vectors of 16 bytes, and what follows the last column isn't ours.
  if (which == Which::kOut && row_bytes % 16 != 0) return false;
  *map = is_operand ? args.operand_pattern : args.out_pattern;
  ptx::replace_tensor_map_address(map, matrix.data);
  ptx::replace_tensor_map_dim<0>(map, static_cast<uint32_t>(matrix.columns));
  ptx::replace_tensor_map_dim<1>(map, static_cast<uint32_t>(matrix.rows));
  ptx::replace_tensor_map_stride<0>(map, static_cast<uint64_t>(stride * element_bytes));
  ptx::fence_tensor_map_release();
  return true;
}

// One block: the verdict over all groups needs no second kernel.
__global__ void __launch_bounds__(kThreads)
    grouped_maps_kernel(const __grid_constant__ GroupedMapsArguments args) {
  ptx::grid_dependency_wait();    // the table is an earlier kernel's
  ptx::grid_dependency_launch();  // the product's CTAs get ready meanwhile
  __shared__ uint32_t tiles;
  if (threadIdx.x == 0) tiles = 0;
  __syncthreads();
  int unfit = 0;
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < args.num_groups * kMatrices; i += kThreads) {
    const int64_t group = i / kMatrices;
    const auto which = static_cast<Which>(i % kMatrices);
    if (!make_map(args, args.table.entries[group], which, map_of(args.maps[group], which))) {
      unfit = 1;
    }
    if (which == Which::kOut) {
      atomicMax(&tiles, static_cast<uint32_t>(args.table.tile_ends[group]));
    }
  }
  unfit = __syncthreads_or(unfit);
  if (threadIdx.x == 0) {
    *args.verdict = {unfit != 0 ? 1u : 0u, unfit != 0 ? 0u : tiles};
  }
}

}  // namespace

Status make_grouped_maps(const cuda::Launch& launch, const GroupedMapsArguments& args) {
  return cuda::launch_kernel(launch, "grouped_maps", grouped_maps_kernel,
                             {.threads = kThreads, .after_prologue = true}, args);
}

}  // namespace cadre::sm90
