// What every CTA of a tgmm does first: sizes on the device become groups with checked rows, longest
// first. All CTAs write the same values to the same place and read them back themselves, so that a
// call is one launch.
#pragma once

#include "cuda/group_inputs.cuh"
#include "cuda/sm90/tgmm_arguments.h"
#include "cuda/sm90/tgmm_storage.cuh"

namespace cadre::sm90 {

// Sorting compares every group with every other; beyond this many the order is left alone.
inline constexpr int kTgmmMaxSorted = 1024;

// Lies in the first stage, before anything is loaded into it.
struct TgmmPlanScratch {
  cuda::ScanScratch<kTgmmThreads> scan;
  int rows[kTgmmMaxSorted];
};

// Whether a matrix of a list is none that the copy engine can take. All threads get the answer.
__device__ __forceinline__ bool tgmm_any_unaligned(const TgmmArguments& args, bool with_c) {
  int unaligned = 0;
  for (const uint64_t* pointers : {args.out.pointers, with_c ? args.c.pointers : nullptr}) {
    for (int i = static_cast<int>(threadIdx.x); pointers != nullptr && i < args.num_local;
         i += kTgmmThreads) {
      unaligned |= static_cast<int>(pointers[i] % 16);
    }
  }
  return __syncthreads_or(unaligned) != 0;
}

// All threads of the CTA; false when there is nothing to do.
template <typename Traits>
__device__ __forceinline__ bool tgmm_make_plan(TgmmStorage<Traits>& shared,
                                               const TgmmArguments& args) {
  static_assert(sizeof(TgmmPlanScratch) <= sizeof shared.stages);
  const bool unaligned = tgmm_any_unaligned(args, Traits::kWithC);
  if (threadIdx.x == 0) args.plan->unaligned = unaligned ? 1 : 0;
  if (unaligned) return false;
  auto& scratch = *reinterpret_cast<TgmmPlanScratch*>(&shared.stages);
  cuda::scan_groups(args.groups, args.offsets, scratch.scan);
  __syncthreads();
  const int num_local = args.num_local;
  const bool sorts = num_local <= kTgmmMaxSorted;
  for (int i = static_cast<int>(threadIdx.x); sorts && i < num_local; i += kTgmmThreads) {
    scratch.rows[i] = static_cast<int>(args.offsets[i + 1] - args.offsets[i]);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_local; i += kTgmmThreads) {
    const TgmmGroup group = {.row = static_cast<int>(args.offsets[i]),
                             .rows = static_cast<int>(args.offsets[i + 1] - args.offsets[i]),
                             .group = i};
    int place = i;
    if (sorts) {
      place = 0;
#pragma unroll 8
      for (int j = 0; j < num_local; ++j) {
        place += scratch.rows[j] > group.rows || (scratch.rows[j] == group.rows && j < i);
      }
    }
    args.plan->groups[place] = group;
  }
  ptx::fence_async_shared();  // the copy engine writes the stages next
  __syncthreads();
  return true;
}

}  // namespace cadre::sm90
