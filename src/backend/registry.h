// The ordered list of backends; every refusal is kept with its reason.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "plan/backend.h"

namespace cadre::backend {

struct Refusal {
  std::string backend;
  std::string reason;
};

struct Selection {
  const plan::Backend* backend = nullptr;
  plan::Config config;
  std::vector<Refusal> refusals;  ///< of the backends tried before the chosen one
};

class Registry {
 public:
  /// The registry of this process, filled with the built-in backends: cuda, cpu, reference.
  static Registry& instance();

  /// Puts a backend in front of all others. Not thread-safe: for start-up and tests.
  void add_front(std::unique_ptr<plan::Backend> backend);

  const std::vector<std::unique_ptr<plan::Backend>>& backends() const { return backends_; }
  /// Null when there is none of this name.
  const plan::Backend* find(std::string_view name) const;
  /// "cuda, cpu, reference"
  std::string names() const;

  /// Kernels of all backends, joined like names().
  std::string kernel_names() const;

  /// kInvalid, and the names there are, when no backend has a kernel of this name; null is fine.
  Status check_pinned(plan::Op op, const char* pinned) const;

  /// The first backend that takes the problem, or kUnsupported with all refusals. A backend named
  /// by the context is tried alone; a pinned kernel must be known to the one that is chosen.
  Status select(const detail::ContextState& context, const plan::Problem& problem,
                const char* pinned, Selection* selection) const;

 private:
  Registry();
  std::vector<std::unique_ptr<plan::Backend>> backends_;
};

}  // namespace cadre::backend
