// What a PackedWeights holds, and whether a call can use it.
#pragma once

#include <vector>

#include "cadre/pack_weights.h"
#include "cpu/gemm_driver.h"
#include "cpu/packed_matrix.h"
#include "cpu/scratch.h"

namespace cadre {

struct PackedWeights::State {
  DType dtype = DType::kInvalid;
  int64_t num_groups = 0;
  cpu::PackedLayout layout{};  ///< of one group
  int64_t group_bytes = 0;
  cpu::Scratch memory;
  std::vector<cpu::PackedMatrix> groups;
};

namespace cpu {

/// Ok and one entry for each item (null where `packed` serves another kernel), or an error when
/// `packed` isn't of the problem's rhs.
Status match_packed_weights(const PackedWeights& packed, const plan::Problem& problem,
                            const std::vector<GemmItem>& items, const GemmPlan& plan,
                            std::vector<const PackedMatrix*>* matrices);

}  // namespace cpu
}  // namespace cadre
