// The reference backend: plain loops in double, the oracle of every test.
#pragma once

#include <memory>

#include "plan/backend.h"

namespace cadre::cpu {

std::unique_ptr<plan::Backend> make_reference_backend();

}  // namespace cadre::cpu
