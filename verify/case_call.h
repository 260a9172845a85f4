// The call that a Case describes, on filled operands; and the kernel that it gets.
#pragma once

#include <string>

#include "cadre/cadre.h"
#include "verify/case.h"
#include "verify/case_data.h"

namespace cadre::verify {

/// Calls the op.
Status call(Context& context, const Case& test_case, const CaseData& data);

/// The kernel that call() runs, found as `cadre explain` finds it: by the op's own checks and the
/// registry, without running anything. gmm and tgmm alone.
Status kernel_of(Context& context, const Case& test_case, const CaseData& data,
                 std::string* kernel);

}  // namespace cadre::verify
