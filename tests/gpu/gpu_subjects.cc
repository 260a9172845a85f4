// The CUDA backend as the subject of the contract suites: as it chooses by itself, and the portable
// kernels alone.
#include <algorithm>

#include "backend/registry.h"
#include "cuda/cuda_backend.h"
#include "tests/gpu/device_memory.h"
#include "tests/support/subjects.h"

namespace cadre::tests {

std::vector<std::string> backend_names() {
  backend::Registry& registry = backend::Registry::instance();
  if (registry.find("cuda_sm80") == nullptr) {
    registry.add_front(cuda::make_cuda_backend("cuda_sm80", "sm80/"));
  }
  const std::vector<std::string> kernels = registry.find("cuda")->kernels();
  const bool others = std::any_of(kernels.begin(), kernels.end(), [](const std::string& kernel) {
    return !kernel.starts_with("sm80/");
  });
  if (others) return {"cuda", "cuda_sm80"};
  return {"cuda_sm80"};
}

std::vector<std::string> backend_and_isa_names() { return backend_names(); }

verify::Memory& memory_of(const std::string& /*name*/) { return device_memory(); }

std::string why_unavailable(const std::string& /*name*/) { return why_no_gpu(); }

ContextOptions BackendUnderTest::options_for(const std::string& name) {
  ContextOptions options;
  options.backend = name;
  return options;
}

}  // namespace cadre::tests
