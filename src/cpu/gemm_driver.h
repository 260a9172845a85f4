// The blocked driver: a list of dense products, any of them small or large, on any number of
// threads.
#pragma once

#include <vector>

#include "cadre/status.h"
#include "cpu/blocking.h"
#include "cpu/gemm_item.h"
#include "cpu/kernels/gemm_kernel.h"
#include "cpu/packed_matrix.h"

namespace cadre::cpu {

struct GemmPlan {
  const GemmKernel* kernel;
  Blocking blocking;
  int threads;
  /// Units of work for each thread: with six, the last ones finish within a few percent of each
  /// other whatever the routing; fewer and larger ones pack less (choose_units_per_thread).
  int units_per_thread = 6;
};

/// Computes every item. The bits of an element depend on its row of A, its column of B and the
/// kernel alone.
/// `packed[i]`, where there is one, holds all of items[i].b for plan.kernel.
Status multiply_items(const std::vector<GemmItem>& items, const GemmPlan& plan,
                      std::vector<const PackedMatrix*> packed = {});

}  // namespace cadre::cpu
