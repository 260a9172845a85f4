// The exact result of an element, straight from the formulas of the contract.
#pragma once

#include "verify/case_data.h"
#include "verify/tolerance.h"

namespace cadre::verify {

/// Element [row, col] of a local group's product; `row` counts within the group for gmm.
/// What an activation of gmm gives for a result; `expected_product` is its input.
Expected expected_activated(const Case& test_case, const CaseData& data, int64_t group, int64_t row,
                            int64_t col);
Expected expected_product(const Case& test_case, const CaseData& data, int64_t group, int64_t row,
                          int64_t col);

Expected expected_dbias(const Case& test_case, const CaseData& data, int64_t group, int64_t col);

/// `row` counts within the group.
Expected expected_dbias_scale(const Case& test_case, const CaseData& data, int64_t group,
                              int64_t row);

}  // namespace cadre::verify
