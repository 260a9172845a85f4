// route: a stable counting sort in three steps, each a kernel: every warp counts its chunk of
// slots, one block sums the counters, every warp places its chunk. Counters are sums of ones, so
// the order of the atomics in them leaves no trace.
#include "cuda/rows/indices.cuh"
#include "cuda/rows/launchers.h"
#include "cuda/rows/route_plan.h"

namespace cadre::rows {
namespace {

constexpr int kWarps = 4;
constexpr int kScanThreads = 1024;
constexpr int kScanItems = 8;

struct RouteArguments {
  RoutePlan plan;
  int64_t top_k;
  IndexView ids, group_sizes, source_row, slot_row;
  uint32_t* counters;
  uint32_t* num_rows;  ///< rows of all experts together
};

__device__ __forceinline__ int64_t chunk_of_warp() {
  return int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
}

/// The expert of a slot; -1 where it is dropped.
__device__ __forceinline__ int64_t expert_of(const RouteArguments& args, int64_t slot) {
  const int64_t id = args.ids.at(slot / args.top_k, slot % args.top_k);
  return id >= 0 && id < args.plan.num_experts ? id : -1;
}

/// The slots of a warp's chunk, 32 at a time: f(slot, expert) with expert -1 for lanes without one.
template <typename F>
__device__ __forceinline__ void walk_chunk(const RouteArguments& args, int64_t chunk, F f) {
  const int64_t begin = chunk * args.plan.slots_of_chunk;
  const int64_t end = min(begin + args.plan.slots_of_chunk, args.plan.slots);
  for (int64_t first = begin; first < end; first += 32) {
    const int64_t slot = first + threadIdx.x % 32;
    f(slot, slot < end ? expert_of(args, slot) : -1, slot < end);
  }
}

__global__ void __launch_bounds__(kWarps * 32)
    count_kernel(const __grid_constant__ RouteArguments args) {
  const int64_t chunk = chunk_of_warp();
  if (chunk >= args.plan.chunks) return;
  walk_chunk(args, chunk, [&](int64_t, int64_t expert, bool) {
    if (expert >= 0) atomicAdd(&args.counters[expert * args.plan.chunks + chunk], 1u);
  });
}

/// Turns counters into their exclusive sums, in place, and writes the group sizes.
__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(const __grid_constant__ RouteArguments args) {
  __shared__ uint32_t warp_sums[kScanThreads / 32];
  const int64_t total = args.plan.counters();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  uint32_t before = 0;  // all steps so far
  for (int64_t begin = 0; begin < total; begin += kScanThreads * kScanItems) {
    uint32_t items[kScanItems];
    uint32_t sum = 0;
    const int64_t first = begin + int64_t{threadIdx.x} * kScanItems;
    for (int i = 0; i < kScanItems; ++i) {
      items[i] = first + i < total ? args.counters[first + i] : 0;
      sum += items[i];
    }
    uint32_t inclusive = sum;
    for (int distance = 1; distance < 32; distance *= 2) {
      const uint32_t below = __shfl_up_sync(0xffffffffu, inclusive, distance);
      if (lane >= distance) inclusive += below;
    }
    __syncthreads();  // the sums of the step before have been read
    if (lane == 31) warp_sums[warp] = inclusive;
    __syncthreads();
    uint32_t running = before + inclusive - sum;
    uint32_t all = 0;
    for (int i = 0; i < kScanThreads / 32; ++i) {
      if (i < warp) running += warp_sums[i];
      all += warp_sums[i];
    }
    for (int i = 0; i < kScanItems && first + i < total; ++i) {
      args.counters[first + i] = running;
      running += items[i];
    }
    before += all;
  }
  __syncthreads();
  for (int64_t expert = threadIdx.x; expert < args.plan.num_experts; expert += kScanThreads) {
    const auto at = [&](int64_t i) {
      return i == args.plan.num_experts || total == 0 ? before
                                                      : args.counters[i * args.plan.chunks];
    };
    args.group_sizes.set(expert, 0, at(expert + 1) - at(expert));
  }
  if (threadIdx.x == 0) *args.num_rows = before;
}

/// Slots of one expert among 32 take consecutive rows, in the order of their lanes.
__global__ void __launch_bounds__(kWarps * 32)
    place_kernel(const __grid_constant__ RouteArguments args) {
  const int64_t chunk = chunk_of_warp();
  if (chunk >= args.plan.chunks) return;
  const unsigned lane = threadIdx.x % 32;
  walk_chunk(args, chunk, [&](int64_t slot, int64_t expert, bool real) {
    const unsigned peers = __match_any_sync(0xffffffffu, expert);
    int64_t row = -1;
    if (expert >= 0) {
      uint32_t* counter = &args.counters[expert * args.plan.chunks + chunk];
      row = int64_t{*counter} + __popc(peers & ((1u << lane) - 1));
    }
    __syncwarp();
    if (expert >= 0 && (peers >> lane) == 1u) {  // the last of its peers
      args.counters[expert * args.plan.chunks + chunk] = static_cast<uint32_t>(row) + 1;
    }
    __syncwarp();
    if (!real) return;
    args.slot_row.set(slot / args.top_k, slot % args.top_k, row);
    if (row >= 0) args.source_row.set(row, 0, slot / args.top_k);
  });
  // Rows that belong to nobody: this warp's share of them.
  const int64_t begin = chunk * args.plan.slots_of_chunk;
  const int64_t end = min(begin + args.plan.slots_of_chunk, args.plan.slots);
  for (int64_t row = max(begin, int64_t{*args.num_rows}) + lane; row < end; row += 32) {
    args.source_row.set(row, 0, -1);
  }
}

}  // namespace

Status launch_route(const cuda::Launch& launch, const RouteArgs& call) {
  const int64_t slots = call.expert_ids.shape[0] * call.expert_ids.shape[1];
  const RoutePlan plan = RoutePlan::of(slots, call.group_sizes.shape[0]);
  auto* scratch = static_cast<uint32_t*>(launch.workspace.scratch());
  const RouteArguments args{.plan = plan,
                            .top_k = call.expert_ids.shape[1],
                            .ids = IndexView::of(call.expert_ids),
                            .group_sizes = IndexView::of(call.group_sizes),
                            .source_row = IndexView::of(call.source_row),
                            .slot_row = IndexView::of(call.slot_row),
                            .counters = scratch + 1,
                            .num_rows = scratch};
  const auto counters = static_cast<size_t>(plan.counters() + 1) * sizeof(uint32_t);
  if (const cudaError_t error = cudaMemsetAsync(scratch, 0, counters, launch.stream);
      error != cudaSuccess) {
    return cuda::cuda_failure("route: clearing the counters", error);
  }
  const auto blocks = static_cast<unsigned>((plan.chunks + kWarps - 1) / kWarps);
  const cuda::GridShape chunks{.blocks = blocks, .threads = kWarps * 32};
  if (slots > 0) {
    Status status = cuda::launch_kernel(launch, "sm80/route", count_kernel, chunks, args);
    if (!status.ok()) return status;
  }
  Status status = cuda::launch_kernel(launch, "sm80/route", scan_kernel,
                                      {.blocks = 1, .threads = kScanThreads}, args);
  if (!status.ok() || slots == 0) return status;
  return cuda::launch_kernel(launch, "sm80/route", place_kernel, chunks, args);
}

}  // namespace cadre::rows
