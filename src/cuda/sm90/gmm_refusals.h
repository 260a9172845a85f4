// What the Hopper gmm kernels see in a Problem, and why they refuse one.
#pragma once

#include <cstdint>
#include <string>

#include "cuda/sm90/shapes.h"
#include "plan/problem.h"

namespace cadre::sm90 {

/// rhs as the kernel sees it: a matrix stored column by column is its transpose stored row by row.
struct WeightsLayout {
  bool transposed;
  int64_t row_stride;
};

/// False where neither its rows nor its columns are contiguous.
bool weights_layout(const plan::Problem& problem, WeightsLayout* layout);

/// Columns of out.
int64_t out_columns(const plan::Problem& problem);
ActivationForm form_of(const Activation& activation);
/// Of FP8 operands.
Promotion promotion_of(const plan::Problem& problem);

/// The reason; empty when the kernels take the problem.
std::string refuse_gmm(const plan::Problem& problem);

}  // namespace cadre::sm90
