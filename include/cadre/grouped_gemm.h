// grouped_gemm: D_i = alpha_i op(A_i) op(B_i) + beta_i C_i, every group of its own m, n and k.
#pragma once

#include "cadre/context.h"
#include "cadre/scaled_tensor.h"

namespace cadre {

struct GroupedGemmArgs {
  ScaledGroups a{};   ///< [m_i, k_i], or [k_i, m_i] with transa
  ScaledGroups b{};   ///< [k_i, n_i], or [n_i, k_i] with transb
  GroupedTensor c{};  ///< [m_i, n_i]; default: d itself
  GroupedTensor d{};  ///< [m_i, n_i]

  bool transa = false;
  bool transb = false;
  GroupScalars alpha = 1.0;
  GroupScalars beta = 0.0;  ///< c is never read where beta is 0
  bool accumulate = false;  ///< the same as beta = 1
  CallOptions options{};
};

/// All four tensors are stacked, lists or packed, and hold the same number of groups.
CADRE_API Status grouped_gemm(Context& context, const GroupedGemmArgs& args);
CADRE_API Status grouped_gemm_workspace_size(Context& context, const GroupedGemmArgs& args,
                                             size_t* size_bytes);

}  // namespace cadre
