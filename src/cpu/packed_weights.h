// Weights packed for one CPU kernel: making them, and finding those of a call's products.
#pragma once

#include <memory>
#include <vector>

#include "cpu/gemm_driver.h"
#include "cpu/packed_matrix.h"
#include "cpu/scratch.h"
#include "plan/context_state.h"
#include "plan/packed_weights.h"

namespace cadre::cpu {

struct CpuPackedWeights final : PackedWeights::State {
  Scratch memory;
  std::vector<PackedMatrix> groups;
};

/// Packs what has been checked, args.lhs_dtype filled in.
Status make_packed_weights(const detail::ContextState& context, const PackWeightsArgs& args,
                           DType compute, std::unique_ptr<PackedWeights::State>* packed);

/// One entry for each item, or none at all where `packed` serves another kernel than the plan's.
std::vector<const PackedMatrix*> packed_matrices(const PackedWeights& packed,
                                                 const std::vector<GemmItem>& items,
                                                 const GemmPlan& plan);

}  // namespace cadre::cpu
