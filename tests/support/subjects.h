// The backends that a test runs over: every one in the registry that works in host memory.
#pragma once

#include <gtest/gtest.h>

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

/// A context for one of these names, and its memory.
class BackendUnderTest {
 public:
  explicit BackendUnderTest(const std::string& name)
      : context_(options_for(name)), memory_(memory_of(name)) {}

  static ContextOptions options_for(const std::string& name);

  verify::Subject subject() const { return {context_, memory_}; }

 private:
  mutable Context context_;
  verify::Memory& memory_;
};

/// One gtest failure for each line.
inline void expect_none(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

}  // namespace cadre::tests
