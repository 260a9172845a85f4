// route: a stable counting sort in three steps: every warp counts its slots, the counters are
// summed, every warp places its slots. One block takes all three where there are few slots, a
// cluster of blocks on Hopper; elsewhere each step is a kernel. Counters are sums of ones, so the
// order of the atomics in them leaves no trace.
#include "cuda/ptx/address.cuh"
#include "cuda/ptx/cluster.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/indices.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/route_plan.h"

namespace cadre::rows {
namespace {

constexpr int kWarps = 4;
constexpr int kScanThreads = 1024;
constexpr int kScanItems = 8;
/// Ids of a lane that are on their way before the first is looked at.
constexpr int kIdsAhead = 8;
/// With more experts than this a warp's counters stay in global memory.
constexpr int64_t kMostSharedExperts = 2048;
static_assert(kScanThreads / 32 == RoutePlan::kWarpsOfBlock);

struct RouteArguments {
  RoutePlan plan;
  int64_t top_k;
  IndexView ids, group_sizes, source_row, slot_row;
  uint32_t* counters;
  uint32_t* num_rows;  ///< rows of all experts together
};

/// The counters of one warp, wherever they lie.
struct WarpCounters {
  uint32_t* first;
  int64_t stride;  ///< from one expert to the next

  __device__ __forceinline__ uint32_t& of(int64_t expert) const { return first[expert * stride]; }
};

__device__ __forceinline__ WarpCounters counters_of(const RouteArguments& args, int64_t warp) {
  return {args.counters + warp, args.plan.warps};
}

/// There are fewer than 2^32 slots: a division of 32 bits.
struct SlotPlace {
  int64_t token;
  int64_t j;
};
__device__ __forceinline__ SlotPlace place_of(const RouteArguments& args, int64_t slot) {
  const auto top_k = static_cast<uint32_t>(args.top_k);
  const uint32_t token = static_cast<uint32_t>(slot) / top_k;
  return {token, static_cast<uint32_t>(slot) - token * top_k};
}

/// The expert of a slot; -1 where it is dropped.
__device__ __forceinline__ int64_t expert_of(const RouteArguments& args, int64_t slot) {
  const SlotPlace place = place_of(args, slot);
  const int64_t id = args.ids.at(place.token, place.j);
  return id >= 0 && id < args.plan.num_experts ? id : -1;
}

/// The slots of a warp, 32 at a time: f(slot, expert, real) with expert -1 for lanes
/// without one. All lanes call it together.
template <typename F>
__device__ __forceinline__ void walk_slots(const RouteArguments& args, int64_t warp, F f) {
  const int64_t begin = warp * args.plan.slots_of_warp;
  const int64_t end = min(begin + args.plan.slots_of_warp, args.plan.slots);
  for (int64_t first = begin; first < end; first += 32 * kIdsAhead) {
    int64_t experts[kIdsAhead];
#pragma unroll
    for (int i = 0; i < kIdsAhead; ++i) {
      const int64_t slot = first + 32 * i + threadIdx.x % 32;
      experts[i] = slot < end ? expert_of(args, slot) : -1;
    }
#pragma unroll
    for (int i = 0; i < kIdsAhead; ++i) {
      if (first + 32 * i >= end) break;
      const int64_t slot = first + 32 * i + threadIdx.x % 32;
      f(slot, experts[i], slot < end);
    }
  }
}

/// Adds a warp's slots to its counters, which are zero.
__device__ __forceinline__ void count_slots(const RouteArguments& args, int64_t warp,
                                            const WarpCounters& counters) {
  walk_slots(args, warp, [&](int64_t, int64_t expert, bool) {
    if (expert >= 0) atomicAdd(&counters.of(expert), 1u);
  });
}

/// Over the threads of a block of kScanThreads: what those below this one have, and all together.
struct RunningSum {
  uint32_t below;
  uint32_t all;

  /// All threads; `warp_sums` is a word of shared memory for each warp.
  __device__ __forceinline__ RunningSum(uint32_t value, uint32_t* warp_sums) : all(0) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    uint32_t inclusive = value;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const uint32_t lower = __shfl_up_sync(0xffffffffu, inclusive, distance);
      if (lane >= distance) inclusive += lower;
    }
    __syncthreads();  // the sums of the step before have been read
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    below = inclusive - value;
    for (unsigned i = 0; i < kScanThreads / 32; ++i) {
      if (i < warp) below += warp_sums[i];
      all += warp_sums[i];
    }
  }
};

/// Turns counters into their exclusive sums, in place, and writes the group sizes. All threads of a
/// block of kScanThreads.
__device__ __forceinline__ void scan_counters(const RouteArguments& args) {
  __shared__ uint32_t warp_sums[kScanThreads / 32];
  const int64_t total = args.plan.counters();
  uint32_t before = 0;  // all steps so far
  for (int64_t begin = 0; begin < total; begin += kScanThreads * kScanItems) {
    uint32_t items[kScanItems];
    uint32_t sum = 0;
    const int64_t first = begin + int64_t{threadIdx.x} * kScanItems;
    for (int i = 0; i < kScanItems; ++i) {
      items[i] = first + i < total ? args.counters[first + i] : 0;
      sum += items[i];
    }
    const RunningSum scan(sum, warp_sums);
    uint32_t running = before + scan.below;
    for (int i = 0; i < kScanItems && first + i < total; ++i) {
      args.counters[first + i] = running;
      running += items[i];
    }
    before += scan.all;
  }
  __syncthreads();
  for (int64_t expert = threadIdx.x; expert < args.plan.num_experts; expert += kScanThreads) {
    const auto at = [&](int64_t i) {
      return i == args.plan.num_experts || total == 0 ? before : args.counters[i * args.plan.warps];
    };
    args.group_sizes.set(expert, 0, at(expert + 1) - at(expert));
  }
  if (threadIdx.x == 0) *args.num_rows = before;
}

/// Slots of one expert among 32 take consecutive rows, in the order of their lanes. `counters` hold
/// the next row of each expert.
__device__ __forceinline__ void place_slots(const RouteArguments& args, int64_t warp,
                                            const WarpCounters& counters, uint32_t num_rows) {
  const unsigned lane = threadIdx.x % 32;
  walk_slots(args, warp, [&](int64_t slot, int64_t expert, bool real) {
    const unsigned peers = __match_any_sync(0xffffffffu, static_cast<uint32_t>(expert));
    int64_t row = -1;
    if (expert >= 0) row = int64_t{counters.of(expert)} + __popc(peers & ((1u << lane) - 1));
    __syncwarp();
    if (expert >= 0 && (peers >> lane) == 1u) {  // the last of its peers
      counters.of(expert) = static_cast<uint32_t>(row) + 1;
    }
    __syncwarp();
    if (!real) return;
    const SlotPlace place = place_of(args, slot);
    args.slot_row.set(place.token, place.j, row);
    if (row >= 0) args.source_row.set(row, 0, place.token);
  });
  // Rows that belong to nobody: this warp's share of them.
  const int64_t begin = warp * args.plan.slots_of_warp;
  const int64_t end = min(begin + args.plan.slots_of_warp, args.plan.slots);
  for (int64_t row = max(begin, int64_t{num_rows}) + lane; row < end; row += 32) {
    args.source_row.set(row, 0, -1);
  }
}

/// A warp's own counters in shared memory: num_experts words for each warp of the block.
__device__ __forceinline__ WarpCounters shared_counters(const RouteArguments& args) {
  extern __shared__ uint32_t words[];
  return {words + threadIdx.x / 32 * args.plan.num_experts, 1};
}

__device__ __forceinline__ int64_t warp_of_grid() {
  return int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
}

template <bool kShared>
__global__ void __launch_bounds__(kWarps * 32)
    count_kernel(const __grid_constant__ RouteArguments args) {
  ptx::follow_grid();
  const int64_t warp = warp_of_grid();
  if (warp >= args.plan.warps) return;
  const WarpCounters all = counters_of(args, warp);
  if constexpr (!kShared) {
    count_slots(args, warp, all);
  } else {
    const WarpCounters mine = shared_counters(args);
    const int64_t lane = threadIdx.x % 32;
    for (int64_t expert = lane; expert < args.plan.num_experts; expert += 32) mine.of(expert) = 0;
    __syncwarp();
    count_slots(args, warp, mine);
    __syncwarp();
    for (int64_t expert = lane; expert < args.plan.num_experts; expert += 32) {
      all.of(expert) = mine.of(expert);
    }
  }
}

__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(const __grid_constant__ RouteArguments args) {
  ptx::follow_grid();
  scan_counters(args);
}

template <bool kShared>
__global__ void __launch_bounds__(kWarps * 32)
    place_kernel(const __grid_constant__ RouteArguments args) {
  ptx::follow_grid();
  const int64_t warp = warp_of_grid();
  if (warp >= args.plan.warps) return;
  const WarpCounters all = counters_of(args, warp);
  if constexpr (!kShared) {
    place_slots(args, warp, all, *args.num_rows);
  } else {
    const WarpCounters mine = shared_counters(args);
    for (int64_t expert = threadIdx.x % 32; expert < args.plan.num_experts; expert += 32) {
      mine.of(expert) = all.of(expert);
    }
    __syncwarp();
    place_slots(args, warp, mine, *args.num_rows);
  }
}

/// The counters of a block that takes all three steps, in its shared memory.
struct BlockCounters {
  uint32_t* of_warps;  ///< [warp][expert]
  uint32_t* sums;      ///< [expert]: of the block's warps
  uint32_t* warp_sums;

  __device__ __forceinline__ explicit BlockCounters(const RoutePlan& plan) {
    extern __shared__ uint32_t words[];
    of_warps = words;
    sums = of_warps + plan.warps_of_block() * plan.num_experts;
    warp_sums = sums + plan.num_experts;
  }
};

/// Turns the counters of all blocks into rows: those of an expert follow those of the experts
/// before it, a block's those of the blocks before it, a warp's those of the warps before it.
/// Writes the group sizes; returns the number of rows.
template <bool kCluster>
__device__ __forceinline__ uint32_t sum_counters(const RouteArguments& args,
                                                 const BlockCounters& counters) {
  const int64_t experts = args.plan.num_experts;
  const auto warps = static_cast<int>(args.plan.warps_of_block());
  for (int64_t expert = threadIdx.x; expert < experts; expert += kScanThreads) {
    uint32_t sum = 0;
    for (int i = 0; i < warps; ++i) sum += counters.of_warps[i * experts + expert];
    counters.sums[expert] = sum;
  }
  if constexpr (kCluster) {
    ptx::cluster_arrive();
    ptx::cluster_wait();
  }
  uint32_t before = 0;  // rows of all experts so far
  for (int64_t first = 0; first < experts; first += kScanThreads) {
    const int64_t expert = first + threadIdx.x;
    uint32_t rows = 0;
    uint32_t lower = 0;  // of the blocks before this one
    if (expert < experts && !kCluster) rows = counters.sums[expert];
    if (expert < experts && kCluster) {
#pragma unroll
      for (unsigned block = 0; block < RoutePlan::kClusterBlocks; ++block) {
        const uint32_t sum = ptx::load_of_block(ptx::shared_address(counters.sums + expert), block);
        if (block < blockIdx.x) lower += sum;
        rows += sum;
      }
    }
    const RunningSum scan(rows, counters.warp_sums);
    if (expert < experts) {
      if (blockIdx.x == 0) args.group_sizes.set(expert, 0, rows);
      uint32_t row = before + scan.below + lower;
      for (int i = 0; i < warps; ++i) {
        uint32_t& counter = counters.of_warps[i * experts + expert];
        const uint32_t count = counter;
        counter = row;
        row += count;
      }
    }
    before += scan.all;
  }
  return before;
}

/// All three steps in one block, or in the blocks of one cluster.
template <bool kCluster>
__global__ void __launch_bounds__(kScanThreads, 1)
    route_kernel(const __grid_constant__ RouteArguments args) {
  ptx::follow_grid();
  const BlockCounters counters(args.plan);
  const int64_t warp = blockIdx.x * RoutePlan::kWarpsOfBlock + threadIdx.x / 32;
  const int64_t experts = args.plan.num_experts;
  const WarpCounters mine = {counters.of_warps + threadIdx.x / 32 * experts, 1};
  for (int64_t i = threadIdx.x; i < args.plan.warps_of_block() * experts; i += kScanThreads) {
    counters.of_warps[i] = 0;
  }
  __syncthreads();
  if (warp < args.plan.warps) count_slots(args, warp, mine);
  __syncthreads();
  const uint32_t num_rows = sum_counters<kCluster>(args, counters);
  // A block stays until the others have read its sums.
  if constexpr (kCluster) ptx::cluster_arrive();
  __syncthreads();
  if (warp < args.plan.warps) place_slots(args, warp, mine, num_rows);
  if constexpr (kCluster) ptx::cluster_wait();
}

template <bool kShared>
Status launch_steps(const cuda::Launch& launch, const RouteArguments& args) {
  const RoutePlan& plan = args.plan;
  if constexpr (!kShared) {
    const auto bytes = static_cast<size_t>(plan.counters()) * sizeof(uint32_t);
    if (const cudaError_t error = cudaMemsetAsync(args.counters, 0, bytes, launch.stream);
        error != cudaSuccess) {
      return cuda::cuda_failure("route: clearing the counters", error);
    }
  }
  const auto shared_bytes =
      kShared ? static_cast<unsigned>(kWarps * plan.num_experts * int64_t{sizeof(uint32_t)}) : 0u;
  const cuda::GridShape grid{.blocks = static_cast<unsigned>((plan.warps + kWarps - 1) / kWarps),
                             .threads = kWarps * 32,
                             .shared_bytes = shared_bytes,
                             .after_prologue = true};
  if (Status status = cuda::launch_kernel(launch, "sm80/route", count_kernel<kShared>, grid, args);
      !status.ok()) {
    return status;
  }
  if (Status status = cuda::launch_kernel(launch, "sm80/route", scan_kernel,
                                          {.threads = kScanThreads, .after_prologue = true}, args);
      !status.ok()) {
    return status;
  }
  return cuda::launch_kernel(launch, "sm80/route", place_kernel<kShared>, grid, args);
}

}  // namespace

Status launch_route(const cuda::Launch& launch, const RouteArgs& call) {
  const int64_t slots = call.expert_ids.shape[0] * call.expert_ids.shape[1];
  const RoutePlan plan = RoutePlan::of(slots, call.group_sizes.shape[0], launch.device->major == 9);
  auto* scratch = static_cast<uint32_t*>(launch.workspace.scratch());
  const RouteArguments args{.plan = plan,
                            .top_k = call.expert_ids.shape[1],
                            .ids = IndexView::of(call.expert_ids),
                            .group_sizes = IndexView::of(call.group_sizes),
                            .source_row = IndexView::of(call.source_row),
                            .slot_row = IndexView::of(call.slot_row),
                            .counters = scratch + 1,
                            .num_rows = scratch};
  if (plan.blocks > 0) {
    const cuda::GridShape shape{.blocks = static_cast<unsigned>(plan.blocks),
                                .threads = kScanThreads,
                                .shared_bytes = static_cast<unsigned>(plan.shared_bytes()),
                                .after_prologue = true,
                                .cluster = static_cast<unsigned>(plan.blocks)};
    return plan.blocks > 1
               ? cuda::launch_kernel(launch, "sm80/route", route_kernel<true>, shape, args)
               : cuda::launch_kernel(launch, "sm80/route", route_kernel<false>, shape, args);
  }
  return plan.num_experts <= kMostSharedExperts ? launch_steps<true>(launch, args)
                                                : launch_steps<false>(launch, args);
}

}  // namespace cadre::rows
