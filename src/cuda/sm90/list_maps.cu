// See lists.h.
#include "cuda/sm90/lists.h"

#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/ptx/tensor_map_replace.cuh"

namespace cadre::sm90 {
namespace {

constexpr int kThreads = 256;

// One block: the verdict over all pointers needs no second kernel.
__global__ void __launch_bounds__(kThreads)
    list_maps_kernel(const __grid_constant__ MappedLists lists) {
  ptx::grid_dependency_wait();    // pointers may be an earlier kernel's, and maps in use by one
  ptx::grid_dependency_launch();  // the product's CTAs get ready meanwhile
  int unaligned = 0;
  for (const MappedList& list : lists.lists) {
    if (list.pointers == nullptr) continue;
    for (int64_t group = threadIdx.x; group < lists.count; group += kThreads) {
      void* const pointer = list.pointers[group];
      if (reinterpret_cast<uint64_t>(pointer) % 16 != 0) {
        unaligned = 1;
        continue;
      }
      list.maps[group] = list.pattern;
      ptx::replace_tensor_map_address(list.maps + group, pointer);
      ptx::fence_tensor_map_release();
    }
  }
  unaligned = __syncthreads_or(unaligned);
  if (threadIdx.x == 0) *lists.unaligned = unaligned != 0 ? 1u : 0u;
}

}  // namespace

Status make_list_maps(const cuda::Launch& launch, const MappedLists& lists) {
  return cuda::launch_kernel(launch, "list_maps", list_maps_kernel,
                             {.threads = kThreads, .after_prologue = true}, lists);
}

}  // namespace cadre::sm90
