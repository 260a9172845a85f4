// The backends that a test runs over: every one in the registry that works in host memory.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/support/sanitized.h"
#include "verify/check_case.h"

namespace cadre::tests {

/// Names of the registry's backends for host memory; CADRE_BACKEND, where set, is the only one.
std::vector<std::string> backend_names();

/// The same, and the cpu backend once more for every other instruction set of this machine:
/// "cpu_avx2", "cpu_scalar".
std::vector<std::string> backend_and_isa_names();

/// Where a backend of this name works. Device test programs bring their own version of this and of
/// the functions above and below (tests/gpu).
verify::Memory& memory_of(const std::string& name);

/// Why tests of this backend can't run here; empty when they can.
std::string why_unavailable(const std::string& name);

/// What takes a part of an op's problems alone: how cases are fitted to it, and who must run them.
struct Restriction {
  std::string kernels{};  ///< how the name of the kernel of every call begins; empty: any
  std::string kernel{};   ///< pinned; empty: none
  std::function<bool(DType lhs, DType rhs, DType out)> takes{};
  std::function<bool(verify::Case*)> fit{};
};

/// Names for BackendUnderTest beside those of the backends: none on the host.
std::vector<std::string> restricted_names(const std::string& op);
/// Empty for a backend.
Restriction restriction_of(const std::string& name);

/// A context for one of these names, and its memory.
class BackendUnderTest {
 public:
  explicit BackendUnderTest(const std::string& name)
      : context_(options_for(name)),
        memory_(memory_of(name)),
        kernels_(restriction_of(name).kernels) {}

  static ContextOptions options_for(const std::string& name);

  verify::Subject subject() const { return {context_, memory_, kernels_}; }

 private:
  mutable Context context_;
  verify::Memory& memory_;
  std::string kernels_;
};

/// One gtest failure for each line.
inline void expect_none(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

}  // namespace cadre::tests
