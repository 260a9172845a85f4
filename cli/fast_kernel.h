// Which kernel a call gets, for benchmarks: the reference is none, since nobody times it.
#pragma once

#include <string>

#include "cadre/context.h"
#include "plan/problem.h"

namespace cadre::cli {

struct FastKernel {
  std::string kernel{};   ///< "cpu/avx2"
  std::string refused{};  ///< else why there is none
};

Status find_fast_kernel(const Context& context, const plan::Problem& problem, FastKernel* found);

}  // namespace cadre::cli
