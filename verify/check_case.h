// Runs a Case and compares every promise of the contract that can be seen in its memory.
#pragma once

#include <string>
#include <vector>

#include "verify/case.h"
#include "verify/case_data.h"
#include "verify/memory.h"

namespace cadre::verify {

/// Who is under test: the context names the backend, the memory is where it works.
struct Subject {
  Context& context;
  Memory& memory;
  /// How the name of every call's kernel must begin ("sm90/"), or the call is a failure; for gmm
  /// and tgmm. Empty: any kernel will do.
  std::string kernels{};
};

/// Everything that was wrong, the worst element first; empty when nothing was. Checked: the status,
/// each element against the exact result (a sample of at least 4,096 with the first and last row of
/// every group where the product is large), zeroed rows, and that no byte changed that the call has
/// no business with: kept rows, padding, guard zones, inputs. Then the call is repeated, and every
/// byte must come out the same.
std::vector<std::string> check_case(const Subject& subject, const Case& test_case);

}  // namespace cadre::verify
