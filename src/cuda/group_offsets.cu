// The local groups' offsets on the device: one block, one launch before the kernel that reads them.
#include "cuda/group_inputs.cuh"

namespace cadre::cuda {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    scan_offsets_kernel(const __grid_constant__ GroupInputs inputs, int64_t* offsets) {
  scan_groups(inputs, offsets);
}

}  // namespace

SizesForm form_of(DType dtype) {
  switch (dtype) {
    case DType::kI8:
      return SizesForm::kI8;
    case DType::kU8:
      return SizesForm::kU8;
    case DType::kI16:
      return SizesForm::kI16;
    case DType::kU16:
      return SizesForm::kU16;
    case DType::kI32:
      return SizesForm::kI32;
    case DType::kU32:
      return SizesForm::kU32;
    case DType::kU64:
      return SizesForm::kU64;
    default:
      return SizesForm::kI64;
  }
}

GroupInputs group_inputs(const Launch& launch, const plan::Problem& problem,
                         const GroupSizes& sizes, const std::vector<int64_t>& host_offsets,
                         const GroupOffset& group_offset, CarriedWords* words) {
  GroupInputs inputs{.m = problem.m,
                     .num_groups = problem.num_groups,
                     .num_local = problem.num_local_groups,
                     .fault = launch.fault};
  inputs.sum_must_be_m = problem.tail == Tail::kForbid;
  if (problem.sizes_on_device) {
    inputs.sizes = sizes.data;
    inputs.form = form_of(sizes.dtype);
    inputs.are_ends = sizes.kind == GroupSizesKind::kEnds;
  } else {
    inputs.sizes = words->add(host_offsets.data(), static_cast<int64_t>(host_offsets.size()));
    inputs.form = SizesForm::kOffsets;
  }
  inputs.group_offset = group_offset.value;
  inputs.group_offset_pointer = group_offset.device_value;
  inputs.offset_form = form_of(group_offset.dtype);
  return inputs;
}

Status scan_offsets(const Launch& launch, const GroupInputs& inputs) {
  return launch_kernel(launch, "scan_offsets", scan_offsets_kernel, {.threads = kScanThreads},
                       inputs, launch.workspace.offsets());
}

}  // namespace cadre::cuda
