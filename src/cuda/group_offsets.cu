// The local groups' offsets on the device: one block, one launch before the kernel that reads them.
#include "cuda/group_inputs.cuh"

namespace cadre::cuda {
namespace {

__global__ void __launch_bounds__(kScanThreads)
    scan_offsets_kernel(const __grid_constant__ GroupInputs inputs, int64_t* offsets) {
  scan_groups(inputs, offsets);
}

SizesForm form_of(DType dtype) {
  if (dtype == DType::kI32) return SizesForm::kI32;
  return dtype == DType::kU32 ? SizesForm::kU32 : SizesForm::kI64;
}

}  // namespace

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
