// The list of bands: one block reads all sizes, sums bands and columns up, and writes every band.
#include "cuda/carried_words.h"
#include "cuda/group_inputs.cuh"
#include "cuda/ptx/pdl.cuh"
#include "cuda/rows/quantize_bands.h"
#include "plan/group_offsets.h"

namespace cadre::rows {
namespace {

using cuda::kScanThreads;

struct BandsArguments {
  cuda::GroupInputs groups;
  int64_t* offsets;
  Band* list;
  int64_t count;
  ColumnRoom room;
};

__device__ __forceinline__ int64_t blocks_of(int64_t rows, int64_t block) {
  return (rows + block - 1) / block;
}

/// Whether column-wise copies hold a group of `size` rows that begins at this slice and band.
__device__ __forceinline__ bool fits(const ColumnRoom& room, int64_t size, int64_t slice,
                                     int64_t band) {
  const int64_t slices = blocks_of(size, kColumnAlignment);
  const bool lines_of_slices = room.line_rows == kColumnAlignment;
  const int64_t lines = lines_of_slices ? slices : blocks_of(size, kBandRows);
  return (slice + slices) * kColumnAlignment <= room.capacity &&
         (lines_of_slices ? slice : band) + lines <= room.lines;
}

/// Groups in steps of the block's threads; within a step a thread writes the bands of other groups
/// than its own, too: one group may have nearly all of them.
__global__ void __launch_bounds__(kScanThreads)
    make_bands_kernel(const __grid_constant__ BandsArguments args) {
  __shared__ int64_t first_bands[kScanThreads + 1];
  __shared__ int64_t first_slices[kScanThreads + 1];
  ptx::follow_grid();
  cuda::scan_groups(args.groups, args.offsets);
  __syncthreads();
  const int64_t num_groups = args.groups.num_local;
  const int thread = static_cast<int>(threadIdx.x);
  constexpr int64_t kNoCap = int64_t{1} << 61;
  int64_t bands_before = 0;
  int64_t slices_before = 0;
  for (int64_t begin = 0; begin < num_groups; begin += kScanThreads) {
    const int64_t group = begin + thread;
    const int64_t rows =
        group < num_groups ? args.offsets[group + 1] - args.offsets[group] : int64_t{0};
    const cuda::BlockSums bands = cuda::capped_block_scan(blocks_of(rows, kBandRows), kNoCap);
    const cuda::BlockSums slices =
        cuda::capped_block_scan(blocks_of(rows, kColumnAlignment), kNoCap);
    first_bands[thread] = bands.exclusive;
    first_slices[thread] = slices.exclusive;
    if (thread == kScanThreads - 1) {
      first_bands[kScanThreads] = bands.inclusive;
      first_slices[kScanThreads] = slices.inclusive;
    }
    __syncthreads();
    for (int64_t band = thread; band < first_bands[kScanThreads]; band += kScanThreads) {
      // The last group of the step that begins at or before the band; empty ones lie before it.
      int low = 0;
      for (int step = kScanThreads / 2; step > 0; step /= 2) {
        if (first_bands[low + step] <= band) low += step;
      }
      const int64_t owner = begin + low;
      const int64_t row = (band - first_bands[low]) * kBandRows;
      const int64_t size = args.offsets[owner + 1] - args.offsets[owner];
      const int64_t slice = slices_before + first_slices[low];
      const bool good = fits(args.room, size, slice, bands_before + first_bands[low]);
      if (!good && row == 0) {
        cuda::report_fault(args.groups.fault, plan::DeviceFault::kExtent);
      }
      args.list[bands_before + band] = {.row = args.offsets[owner] + row,
                                        .column = good ? slice * kColumnAlignment + row : 0,
                                        .line = good ? bands_before + band : 0,
                                        .rows = static_cast<int32_t>(min(size - row, kBandRows)),
                                        .group = good ? static_cast<int32_t>(owner) : -1};
    }
    bands_before += first_bands[kScanThreads];
    slices_before += first_slices[kScanThreads];
    __syncthreads();  // all have been read before the next step writes them
  }
  const int64_t tail = args.offsets[num_groups];
  for (int64_t i = bands_before + thread; i < args.count; i += kScanThreads) {
    const int64_t row = tail + (i - bands_before) * kBandRows;
    const int64_t left = max(args.groups.m - row, int64_t{0});
    args.list[i] = {.row = row,
                    .column = 0,
                    .line = 0,
                    .rows = static_cast<int32_t>(min(left, kBandRows)),
                    .group = -1};
  }
}

/// Bands of all groups and of the tail.
int64_t most_bands(const plan::Problem& problem) {
  return column_scale_capacity(problem.m, problem.num_groups + 1, kBandRows);
}

}  // namespace

// Without columns, too: the bands of the groups are made all the same.
size_t bands_bytes(const plan::Problem& problem) {
  return static_cast<size_t>(most_bands(problem)) * sizeof(Band);
}

Status make_bands(const cuda::Launch& launch, const plan::Problem& problem, const TensorView& x,
                  const GroupSizes& sizes, const ColumnRoom& room, Bands* bands) {
  *bands = {.weights = x.rank == 3, .m = problem.m};
  if (bands->weights || (sizes.data == nullptr && sizes.count == 0)) {
    bands->group_rows = bands->weights ? x.shape[1] : problem.m;
    bands->groups = problem.num_groups;
    bands->count = (bands->group_rows + kBandRows - 1) / kBandRows;
    return {};
  }
  std::vector<int64_t> host_offsets;
  if (!problem.sizes_on_device) {
    if (Status status =
            plan::make_group_offsets(launch.op, sizes, problem.m, Tail::kZero, &host_offsets);
        !status.ok()) {
      return status;
    }
  }
  cuda::CarriedWords words(launch);
  BandsArguments args{
      .groups = cuda::group_inputs(launch, problem, sizes, host_offsets, {}, &words),
      .offsets = launch.workspace.offsets(),
      .list = static_cast<Band*>(launch.workspace.scratch()),
      .count = problem.n == 0 ? 0 : most_bands(problem),
      .room = room};
  if (Status status = words.send(); !status.ok()) return status;
  bands->list = args.list;
  bands->count = args.count;
  bands->tail_begin = args.offsets + problem.num_groups;
  return cuda::launch_kernel(launch, "sm80/quantize bands", make_bands_kernel,
                             {.threads = kScanThreads, .after_prologue = true}, args);
}

}  // namespace cadre::rows
