// The ordered list of backends.
#include "backend/registry.h"

#include <algorithm>
#include <utility>

#include "backend/tuning.h"
#include "core/text.h"
#include "cpu/cpu_backend.h"
#include "cpu/reference.h"
#if defined(CADRE_WITH_CUDA)
#include "cuda/cuda_backend.h"
#endif

namespace cadre::backend {

Registry& Registry::instance() {
  static Registry registry;
  return registry;
}

Registry::Registry() {
#if defined(CADRE_WITH_CUDA)
  backends_.push_back(cuda::make_cuda_backend());
#endif
  backends_.push_back(cpu::make_cpu_backend());
  backends_.push_back(cpu::make_reference_backend());
}

void Registry::add_front(std::unique_ptr<plan::Backend> backend) {
  backends_.insert(backends_.begin(), std::move(backend));
}

const plan::Backend* Registry::find(std::string_view name) const {
  const auto found = std::find_if(backends_.begin(), backends_.end(),
                                  [&](const auto& backend) { return backend->name() == name; });
  return found == backends_.end() ? nullptr : found->get();
}

std::string Registry::names() const {
  std::string names;
  for (const auto& backend : backends_) names += text(names.empty() ? "" : ", ", backend->name());
  return names;
}

std::string Registry::kernel_names() const {
  std::string names;
  for (const auto& backend : backends_) {
    for (const std::string& kernel : backend->kernels()) {
      names += text(names.empty() ? "" : ", ", kernel);
    }
  }
  return names;
}

Status Registry::check_pinned(plan::Op op, const char* pinned) const {
  if (pinned == nullptr) return {};
  for (const auto& backend : backends_) {
    const std::vector<std::string> kernels = backend->kernels();
    if (std::find(kernels.begin(), kernels.end(), pinned) != kernels.end()) return {};
  }
  return Status::invalid(text(plan::name_of(op), ": options.config = \"", pinned,
                              "\", expected one of ", kernel_names()));
}

Status Registry::select(const detail::ContextState& context, const plan::Problem& problem,
                        const char* pinned, Selection* selection) const {
  Status first_invalid;
  for (const auto& backend : backends_) {
    if (!context.backend.empty() && backend->name() != context.backend) continue;
    const Status status = backend->choose(context, problem, pinned, &selection->config);
    if (status.ok()) {
      selection->backend = backend.get();
      if (pinned == nullptr) choose_tuned(context, *backend, problem, &selection->config);
      return {};
    }
    if (status.code() == StatusCode::kInternal) return status;
    if (status.code() == StatusCode::kInvalid && first_invalid.ok()) first_invalid = status;
    selection->refusals.push_back({std::string(backend->name()), status.message()});
  }
  if (Status status = check_pinned(problem.op, pinned); !status.ok()) return status;
  std::string message = text(plan::name_of(problem.op), ": no backend takes ", to_string(problem));
  for (const Refusal& refusal : selection->refusals) {
    message += text("; ", refusal.backend, ": ", refusal.reason);
  }
  return first_invalid.ok() ? Status::unsupported(message) : Status::invalid(message);
}

}  // namespace cadre::backend
