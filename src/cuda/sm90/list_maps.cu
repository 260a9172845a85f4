// See list_maps.h.
#include "cuda/sm90/list_maps.h"

#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/tensor_map_replace.cuh"

namespace cadre::sm90 {
namespace {

__global__ void list_maps_kernel(const __grid_constant__ CUtensorMap pattern, void* const* pointers,
                                 int64_t count, CUtensorMap* maps) {
  const int64_t group = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (group >= count) return;
  maps[group] = pattern;
  ptx::replace_tensor_map_address(maps + group, pointers[group]);
  ptx::fence_tensor_map_release();
}

}  // namespace

Status make_list_maps(const cuda::Launch& launch, const CUtensorMap& pattern, void* const* pointers,
                      int64_t count, CUtensorMap* maps) {
  constexpr int64_t kThreads = 64;
  const cuda::GridShape shape{.blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads),
                              .threads = kThreads};
  return cuda::launch_kernel(launch, "list_maps", list_maps_kernel, shape, pattern, pointers, count,
                             maps);
}

}  // namespace cadre::sm90
