// The plan kernel that runs before a tgmm product.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cuda/group_inputs.h"
#include "cuda/sm90/tgmm_arguments.h"

namespace cadre::sm90 {

constexpr size_t tgmm_plan_bytes(int64_t num_local) {
  return sizeof(TgmmPlan) + static_cast<size_t>(num_local) * sizeof(TgmmGroup);
}

// `offsets`: room for num_local + 1.
cudaError_t launch_tgmm_plan(const cuda::GroupInputs& inputs, int64_t* offsets, TgmmPlan* plan,
                             cudaStream_t stream);

}  // namespace cadre::sm90
