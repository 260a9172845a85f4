// Where a call's group sizes and pointer lists lie on the device, and the local groups' validated
// offsets.
#pragma once

#include <cstdint>
#include <vector>

#include "cadre/tensor.h"
#include "cuda/carried_words.h"
#include "cuda/launch.h"
#include "plan/problem.h"

namespace cadre::cuda {

/// How the sizes lie on the device. Plain: it travels as a kernel parameter. Forms of less than 32
/// bits come first.
enum class SizesForm : int32_t { kI8, kU8, kI16, kU16, kI32, kU32, kI64, kU64, kOffsets };

SizesForm form_of(DType dtype);

struct GroupInputs {
  const void* sizes = nullptr;  ///< num_groups sizes, or num_groups + 1 offsets for kOffsets
  SizesForm form = SizesForm::kOffsets;
  bool are_ends = false;                    ///< ends instead of sizes; never with kOffsets
  SizesForm offset_form = SizesForm::kI64;  ///< of *group_offset_pointer
  bool sum_must_be_m = false;               ///< tail = forbid
  int64_t m = 0;
  int64_t num_groups = 0;
  int64_t num_local = 0;
  int64_t group_offset = 0;  ///< used when the pointer is null
  const void* group_offset_pointer = nullptr;
  int32_t* fault = nullptr;
};

/// Describes the sizes; host offsets are added to `words`, which the caller sends before its
/// kernels.
GroupInputs group_inputs(const Launch& launch, const plan::Problem& problem,
                         const GroupSizes& sizes, const std::vector<int64_t>& host_offsets,
                         const GroupOffset& group_offset, CarriedWords* words);

/// Writes workspace.offsets(): group i of the local ones has rows [offsets[i], offsets[i + 1]),
/// always ascending and within [0, m]; what lies outside all of them is tail or foreign. Faults go
/// to the status word.
Status scan_offsets(const Launch& launch, const GroupInputs& inputs);

}  // namespace cadre::cuda
