// The fast CPU backend: blocked products with a kernel for each instruction set.
#pragma once

#include <memory>

#include "plan/backend.h"

namespace cadre::cpu {

std::unique_ptr<plan::Backend> make_cpu_backend();

}  // namespace cadre::cpu
