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

/// A context for one of these names, and its memory.
class BackendUnderTest {
 public:
  explicit BackendUnderTest(const std::string& name) : context_(options_for(name)) {}

  static ContextOptions options_for(const std::string& name);

  verify::Subject subject() const { return {context_, verify::host_memory()}; }

 private:
  mutable Context context_;
};

/// One gtest failure for each line.
inline void expect_none(const std::vector<std::string>& failures) {
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

}  // namespace cadre::tests
