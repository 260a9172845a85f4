// A kernel that does nothing, for tests of launches themselves.
#pragma once

#include "cuda/launch.h"

namespace cadre::tests {

/// Launches it under the name "tests/noop".
Status launch_noop(const cuda::Launch& launch, const cuda::GridShape& shape);

}  // namespace cadre::tests
