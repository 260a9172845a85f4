// The plan kernel that runs before a tgmm product.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/group_inputs.h"
#include "cuda/sm90/tgmm_arguments.h"

namespace cadre::sm90 {

constexpr size_t tgmm_plan_bytes(int64_t num_local) {
  return sizeof(TgmmPlan) + static_cast<size_t>(num_local) * sizeof(TgmmGroup);
}

// Device memory of one call.
struct TgmmWorkspace {
  int64_t* offsets = nullptr;  // num_local + 1
  TgmmPlan* plan = nullptr;    // tgmm_plan_bytes(num_local)
};

// Addresses of listed matrices, on the device; null where there is no list.
struct TgmmPlanLists {
  const uint64_t* out = nullptr;
  const uint64_t* c = nullptr;
};

Status launch_tgmm_plan(const cuda::Launch& launch, const cuda::GroupInputs& inputs,
                        const TgmmPlanLists& lists, const TgmmWorkspace& workspace);

}  // namespace cadre::sm90
