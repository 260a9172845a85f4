// A kernel that does nothing, for tests of launches themselves.
#include "tests/gpu/noop_kernel.h"

namespace cadre::tests {
namespace {

__global__ void noop_kernel(int* /*unused*/) {}

}  // namespace

Status launch_noop(const cuda::Launch& launch, const cuda::GridShape& shape) {
  int* const nothing = nullptr;
  return cuda::launch_kernel(launch, "tests/noop", noop_kernel, shape, nothing);
}

}  // namespace cadre::tests
