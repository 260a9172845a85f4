// route, permute, combine and combine_grad as plain loops in double.
#pragma once

#include "plan/problem.h"
#include "plan/row_call.h"

namespace cadre::cpu {

void reference_rows(const plan::Problem& problem, const plan::RowCall& call);

}  // namespace cadre::cpu
