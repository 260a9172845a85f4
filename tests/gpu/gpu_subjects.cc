// The CUDA backend as the subject of the contract suites: as it chooses by itself, the portable
// kernels alone, and the Hopper kernels on what they take.
#include <algorithm>

#include "backend/registry.h"
#include "core/text.h"
#include "cuda/cuda_backend.h"
#include "cuda/device.h"
#include "tests/gpu/device_memory.h"
#include "tests/gpu/hopper_subjects.h"
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

std::vector<std::string> restricted_names(const std::string& op) {
  std::vector<std::string> names;
  for (const HopperSubject& subject : hopper_subjects()) {
    const bool other = op == "tgmm" || op == "grouped_gemm";
    if (op == "gmm" || (other && subject.kernel.empty())) names.push_back(subject.name);
  }
  return names;
}

Restriction restriction_of(const std::string& name) {
  const HopperSubject* subject = find_hopper_subject(name);
  if (subject == nullptr) return {};
  return {.kernels = "sm90/",
          .kernel = subject->kernel,
          .takes =
              [subject](DType lhs, DType rhs, DType out) {
                return lhs == rhs && (lhs == DType::kBF16 || lhs == DType::kF16) &&
                       (out == lhs || (out == DType::kF32 && subject->f32_out));
              },
          .fit = [subject](verify::Case* c) { return fit_to_hopper(*subject, c); }};
}

verify::Memory& memory_of(const std::string& /*name*/) { return device_memory(); }

std::string why_unavailable(const std::string& name) {
  const std::string reason = why_no_gpu();
  if (!reason.empty() || find_hopper_subject(name) == nullptr) return reason;
  const cuda::DeviceProperties* device = nullptr;
  if (const Status status = cuda::device_properties(0, &device); !status.ok()) {
    return status.message();
  }
  if (device->major == 9) return {};
  return text("needs compute capability 9.0, ", device->name, " has ", device->major, ".",
              device->minor);
}

ContextOptions BackendUnderTest::options_for(const std::string& name) {
  ContextOptions options;
  const HopperSubject* subject = find_hopper_subject(name);
  options.backend = subject == nullptr ? name : "cuda";
  if (subject != nullptr) options.sm_count = subject->sm_count;
  return options;
}

}  // namespace cadre::tests
