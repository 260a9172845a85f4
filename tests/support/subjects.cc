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

std::vector<std::string> backend_and_isa_names() {
  std::vector<std::string> names = backend_names();
  const plan::Backend* cpu = backend::Registry::instance().find("cpu");
  if (cpu == nullptr || !environment::isa().empty() || !environment::backend().empty()) {
    return names;
  }
  const std::vector<std::string> kernels = cpu->kernels();  // "cpu/avx512", best first
  for (size_t i = 1; i < kernels.size(); ++i) {
    names.push_back("cpu_" + kernels[i].substr(kernels[i].find('/') + 1));
  }
  return names;
}

verify::Memory& memory_of(const std::string& /*name*/) { return verify::host_memory(); }

std::string why_unavailable(const std::string& /*name*/) { return {}; }

std::vector<std::string> restricted_names(const std::string& /*op*/) { return {}; }

Restriction restriction_of(const std::string& /*name*/) { return {}; }

ContextOptions BackendUnderTest::options_for(const std::string& name) {
  ContextOptions options;
  const size_t separator = name.find('_');
  options.backend = name.substr(0, separator);
  if (separator != std::string::npos) options.isa = name.substr(separator + 1);
  return options;
}

}  // namespace cadre::tests
