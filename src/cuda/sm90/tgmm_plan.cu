// The kernel before a tgmm product: one block turns sizes on the device into groups with checked
// rows, longest first, and sets the tile counter to zero.
#include "cuda/device.h"
#include "cuda/group_inputs.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/sm90/tgmm_plan.h"

namespace cadre::sm90 {
namespace {

// Sorting compares every group with every other; beyond this many the order is left alone.
constexpr int kMaxSorted = 1024;

__global__ void __launch_bounds__(cuda::kScanThreads)
    tgmm_plan_kernel(const __grid_constant__ cuda::GroupInputs inputs,
                     const __grid_constant__ TgmmPlanLists lists, int64_t* offsets,
                     TgmmPlan* plan) {
  __shared__ int rows[kMaxSorted];
  ptx::grid_dependency_wait();
  ptx::grid_dependency_launch();
  cuda::scan_groups(inputs, offsets);
  __syncthreads();
  const int num_local = static_cast<int>(inputs.num_local);
  const bool sorts = num_local <= kMaxSorted;
  int unaligned = 0;
  for (const uint64_t* pointers : {lists.out, lists.c}) {
    for (int i = static_cast<int>(threadIdx.x); pointers != nullptr && i < num_local;
         i += cuda::kScanThreads) {
      unaligned |= static_cast<int>(pointers[i] % 16);
    }
  }
  unaligned = __syncthreads_or(unaligned);
  if (threadIdx.x == 0) {
    plan->next_tile = 0;
    plan->unaligned = unaligned != 0 ? 1 : 0;
  }
  for (int i = static_cast<int>(threadIdx.x); sorts && i < num_local; i += cuda::kScanThreads) {
    rows[i] = static_cast<int>(offsets[i + 1] - offsets[i]);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_local; i += cuda::kScanThreads) {
    const TgmmGroup group = {.row = static_cast<int>(offsets[i]),
                             .rows = static_cast<int>(offsets[i + 1] - offsets[i]),
                             .group = i};
    int place = i;
    if (sorts) {
      place = 0;
#pragma unroll 8
      for (int j = 0; j < num_local; ++j) {
        place += rows[j] > group.rows || (rows[j] == group.rows && j < i);
      }
    }
    plan->groups[place] = group;
  }
}

}  // namespace

Status launch_tgmm_plan(const cuda::Launch& launch, const cuda::GroupInputs& inputs,
                        const TgmmPlanLists& lists, const TgmmWorkspace& workspace) {
  const cuda::GridShape shape{.threads = cuda::kScanThreads, .after_prologue = true};
  return cuda::launch_kernel(launch, "tgmm_plan", tgmm_plan_kernel, shape, inputs, lists,
                             workspace.offsets, workspace.plan);
}

}  // namespace cadre::sm90
