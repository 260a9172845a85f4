// Finds the backends of this machine.
#include "tests/support/subjects.h"

#include "backend/registry.h"
#include "core/environment.h"

namespace cadre::tests {

std::vector<std::string> backend_names() {
  if (const std::string only = environment::backend(); !only.empty()) return {only};
  std::vector<std::string> names;
  for (const auto& backend : backend::Registry::instance().backends()) {
    if (backend->name() != "cuda") names.emplace_back(backend->name());
  }
  return names;
}

}  // namespace cadre::tests
