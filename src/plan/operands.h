// Operands: the pointers and run-time values of one call, already checked. With a Problem and a
// Config this is all a kernel gets.
#pragma once

#include <cstdint>
#include <vector>

#include "cadre/bias_grad.h"
#include "cadre/context.h"
#include "cadre/gmm.h"
#include "cadre/scaled_tensor.h"
#include "plan/epilogue.h"

namespace cadre::plan {

/// gmm, tgmm and grouped_gemm share one form; Problem::op says how to read it.
struct Operands {
  GroupedTensor lhs{};  ///< kRows for gmm and tgmm
  GroupedTensor rhs{};  ///< kRows for tgmm
  Scales lhs_scales{};  ///< Problem::lhs_scales says how they lie
  Scales rhs_scales{};
  GroupedTensor out{};
  TensorView lhs_index{};  ///< [m]: row r of the product is row lhs_index[r] of lhs
  TensorView rhs_index{};  ///< the same for rhs of tgmm
  Epilogue epilogue{};
  GroupSizes group_sizes{};
  /// Sizes on the host, summed and checked: num_groups + 1 offsets. Empty for sizes on a device.
  std::vector<int64_t> host_offsets;
  GroupOffset group_offset = 0;
  const PackedWeights* packed_rhs = nullptr;
};

}  // namespace cadre::plan
