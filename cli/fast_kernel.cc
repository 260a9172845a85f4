// Asks the registry as a call does.
#include "fast_kernel.h"

#include "backend/registry.h"
#include "core/text.h"

namespace cadre::cli {

Status find_fast_kernel(const Context& context, const plan::Problem& problem, FastKernel* found) {
  if (!context.status().ok()) return context.status();
  const detail::ContextState& state = context.state();
  backend::Selection selection;
  const Status status = backend::Registry::instance().select(state, problem, nullptr, &selection);
  if (!status.ok() && status.code() != StatusCode::kUnsupported) return status;
  if (status.ok() && (selection.backend->name() != "reference" || state.backend == "reference")) {
    found->kernel = selection.config.kernel;
    return {};
  }
  // Of the backend that is at home where the tensors are; the others say that they aren't.
  const std::string_view home = problem.device.kind == DeviceKind::kCpu ? "cpu" : "cuda";
  for (const backend::Refusal& refusal : selection.refusals) {
    if (refusal.backend == home) found->refused = text(home, ": ", refusal.reason);
  }
  if (found->refused.empty()) found->refused = status.message();
  return {};
}

}  // namespace cadre::cli
