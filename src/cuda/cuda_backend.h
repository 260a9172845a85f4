// The CUDA backend: an ordered list of kernel families behind plan::Backend.
#pragma once

#include <memory>
#include <string>

#include "plan/backend.h"

namespace cadre::cuda {

/// With a prefix ("sm80/") only kernels of that name are used: for tests and comparisons.
std::unique_ptr<plan::Backend> make_cuda_backend(std::string name = "cuda",
                                                 std::string kernel_prefix = {});

}  // namespace cadre::cuda
