// Host side of the Hopper tgmm kernel: which instantiation a call gets, and its launch. No
// allocation, no synchronisation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cadre/dtype.h"
#include "cadre/status.h"
#include "cuda/launch.h"
#include "cuda/sm90/tgmm_arguments.h"
#include "cuda/sm90/tgmm_instances.h"

namespace cadre::sm90 {

// The matrices of out or C; strides in elements. `base` is the first matrix or, with `pointers` (on
// the device), at most the lowest of them.
struct TgmmResult {
  const void* base = nullptr;
  void* const* pointers = nullptr;
  int64_t group_stride = 0;
  int64_t row_stride = 0;
};

// A checked call: lhs [m, k], rhs [m, n], rows contiguous.
struct TgmmCall {
  DType element = DType::kBF16;  // of lhs and rhs
  DType output = DType::kBF16;   // of out and C
  int64_t k = 0;
  int64_t n = 0;
  const void* lhs = nullptr;
  int64_t lhs_stride = 0;
  const void* rhs = nullptr;
  int64_t rhs_stride = 0;
  TgmmResult out;
  TgmmResult c;              // used by instances with C
  cuda::GroupInputs groups;  // m and the number of groups are here
  TgmmScalars alpha = {.value = 1};
  TgmmScalars beta;
};

struct TgmmConfig {
  const TgmmInstance* instance = nullptr;
  int band = 16;  // tiles along k that are swept along n together
};

constexpr size_t tgmm_plan_bytes(int64_t num_local) {
  return sizeof(TgmmPlan) + static_cast<size_t>(num_local) * sizeof(TgmmGroup);
}

// Device memory of one call.
struct TgmmWorkspace {
  int64_t* offsets = nullptr;        // num_local + 1
  TgmmPlan* plan = nullptr;          // tgmm_plan_bytes(num_local)
  uint32_t* tile_counter = nullptr;  // 0 before and after; null: a fixed order of tiles
};

enum class TgmmBeta { kAbsent, kGiven };

std::span<const TgmmInstance> tgmm_instances_of(DType element);

// One tile won on every shape that was measured (docs/kernels.md), so only beta decides.
TgmmConfig choose_tgmm_config(DType element, TgmmBeta beta);

Status launch_tgmm(const cuda::Launch& launch, const TgmmCall& call, const TgmmConfig& config,
                   const TgmmWorkspace& workspace);

}  // namespace cadre::sm90
