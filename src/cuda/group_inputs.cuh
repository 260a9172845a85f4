// Device side of group_inputs.h: a block reads all sizes and turns them into offsets that never
// leave [0, m].
#pragma once

#include <cstdint>

#include "cuda/group_inputs.h"
#include "cuda/status_word.cuh"

namespace cadre::cuda {

/// Threads of a block that scans: one group a thread and step.
inline constexpr int kScanThreads = 512;

/// Sizes of less than 32 bits are rare: their code stays off the path on which a kernel starts.
__device__ __forceinline__ bool is_narrow(SizesForm form) { return form < SizesForm::kI32; }

/// Element `index` in a form that isn't narrow. A u64 above 2^63 - 1 reads as negative, and is as
/// bad as a negative size.
__device__ __forceinline__ int64_t read_wide_form(const void* data, SizesForm form, int64_t index) {
  switch (form) {
    case SizesForm::kI32:
      return static_cast<const int32_t*>(data)[index];
    case SizesForm::kU32:
      return static_cast<const uint32_t*>(data)[index];
    case SizesForm::kOffsets:
      return static_cast<const int64_t*>(data)[index + 1] -
             static_cast<const int64_t*>(data)[index];
    default:  // kI64 and kU64
      return static_cast<const int64_t*>(data)[index];
  }
}

__device__ __forceinline__ int64_t read_form(const void* data, SizesForm form, int64_t index) {
  switch (form) {
    case SizesForm::kI8:
      return static_cast<const int8_t*>(data)[index];
    case SizesForm::kU8:
      return static_cast<const uint8_t*>(data)[index];
    case SizesForm::kI16:
      return static_cast<const int16_t*>(data)[index];
    case SizesForm::kU16:
      return static_cast<const uint16_t*>(data)[index];
    default:
      return read_wide_form(data, form, index);
  }
}

/// The size of a group between two ends. Where the ones before are good (0 to m, not decreasing),
/// it is good if and only if its end is: negative for an end that decreases, above m for one that
/// is above m or so far below 0 that the difference wraps around.
__device__ __forceinline__ int64_t size_between(int64_t before, int64_t end) {
  return static_cast<int64_t>(static_cast<uint64_t>(end) - static_cast<uint64_t>(before));
}

/// The size of group `index`, wherever it comes from.
__device__ __forceinline__ int64_t read_size(const GroupInputs& inputs, int64_t index) {
  int64_t size = 0;
  // A loop, so that the code of all forms exists once: ends are read twice, the one before first.
#pragma unroll 1
  for (int64_t at = inputs.are_ends && index > 0 ? index - 1 : index; at <= index; ++at) {
    size = size_between(size, read_form(inputs.sizes, inputs.form, at));
  }
  return size;
}

/// Inclusive and exclusive sums over a block.
struct BlockSums {
  int64_t inclusive;
  int64_t exclusive;
};

/// Shared memory of a scan by kThreads threads, a whole number of warps.
template <int kThreads>
struct ScanScratch {
  int64_t sums[kThreads + 1];
  int64_t end_of_step;  ///< rows of all good groups up to the end of a step
  bool bad_from_here;
};

/// A sum that stops growing at `cap` (values in [0, cap]): associative, so the order doesn't
/// matter, and it can't overflow for cap < 2^62.
template <int kThreads>
__device__ __forceinline__ BlockSums capped_block_scan(int64_t value, int64_t cap,
                                                       ScanScratch<kThreads>& scratch) {
  int64_t* sums = scratch.sums;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int64_t below = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value = min(value + below, cap);
  }
  __syncthreads();  // an earlier scan's sums have been read
  sums[thread + 1] = value;
  if (thread == 0) sums[0] = 0;
  __syncthreads();
  // Sums of whole warps before this one; sums[] itself still holds warp-wise sums.
  int64_t before = 0;
  for (int end = 32; end <= thread - lane; end += 32) before = min(before + sums[end], cap);
  const int64_t previous = lane == 0 ? 0 : sums[thread];
  return {min(before + value, cap), min(before + previous, cap)};
}

__device__ __forceinline__ BlockSums capped_block_scan(int64_t value, int64_t cap) {
  __shared__ ScanScratch<kScanThreads> scratch;
  return capped_block_scan(value, cap, scratch);
}

/// The first local group: -1, and a fault, when it is out of range. Every thread of the block gets
/// it.
__device__ __forceinline__ int64_t first_local_group(const GroupInputs& inputs) {
  const int64_t first = inputs.group_offset_pointer == nullptr
                            ? inputs.group_offset
                            : read_form(inputs.group_offset_pointer, inputs.offset_form, 0);
  if (first >= 0 && first <= inputs.num_groups - inputs.num_local) return first;
  if (threadIdx.x == 0) report_fault(inputs.fault, plan::DeviceFault::kGroupOffset);
  return -1;
}

/// The whole block (kThreads threads) writes offsets[0 .. num_local]. From the first bad size on
/// every group is empty, and lies at the end of the last good one. With a bad group_offset all
/// local groups are empty rows [0, 0).
template <int kThreads>
__device__ __forceinline__ void scan_groups(const GroupInputs& inputs, int64_t* offsets,
                                            ScanScratch<kThreads>& scratch) {
  const int64_t first = first_local_group(inputs);
  if (first < 0) {
    for (int64_t i = threadIdx.x; i <= inputs.num_local; i += kThreads) offsets[i] = 0;
    return;
  }
  if (threadIdx.x == 0 && first == 0) offsets[0] = 0;
  // A sum of m + 1 stands for "bad from here on".
  const int64_t cap = inputs.m + 1;
  int64_t before = 0;
  bool was_bad = false;
  for (int64_t begin = 0; begin < inputs.num_groups; begin += kThreads) {
    const int64_t group = begin + threadIdx.x;
    const bool real = group < inputs.num_groups;
    const int64_t size = real ? read_size(inputs, group) : 0;
    const int64_t capped = size < 0 || size > inputs.m ? cap : size;
    const BlockSums sums = capped_block_scan(capped, cap, scratch);
    const bool bad = was_bad || before + sums.inclusive > inputs.m;
    const bool first_bad = bad && !was_bad && before + sums.exclusive <= inputs.m;
    if (threadIdx.x == kThreads - 1) {
      scratch.bad_from_here = bad;
      if (!bad || was_bad) scratch.end_of_step = was_bad ? before : before + sums.inclusive;
    }
    if (first_bad) {
      scratch.end_of_step = before + sums.exclusive;
      report_fault(inputs.fault,
                   size < 0 ? plan::DeviceFault::kNegativeSize : plan::DeviceFault::kSumAboveRows);
    }
    __syncthreads();
    const int64_t slot = group + 1 - first;
    if (real && slot >= 0 && slot <= inputs.num_local) {
      offsets[slot] = bad ? scratch.end_of_step : before + sums.inclusive;
    }
    before = scratch.end_of_step;
    was_bad = scratch.bad_from_here;
    __syncthreads();  // both have been read before the next step writes them
  }
  if (threadIdx.x == 0 && inputs.sum_must_be_m && (was_bad || before != inputs.m)) {
    report_fault(inputs.fault, plan::DeviceFault::kSumNotRows);
  }
}

/// The same for a block of kScanThreads threads.
__device__ __forceinline__ void scan_groups(const GroupInputs& inputs, int64_t* offsets) {
  __shared__ ScanScratch<kScanThreads> scratch;
  scan_groups(inputs, offsets, scratch);
}

}  // namespace cadre::cuda
