// The CUDA backend: an ordered list of kernel families behind plan::Backend.
#pragma once

#include <memory>

#include "plan/backend.h"

namespace cadre::cuda {

std::unique_ptr<plan::Backend> make_cuda_backend();

}  // namespace cadre::cuda
