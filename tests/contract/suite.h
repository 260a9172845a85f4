// A suite of the contract: its tests run over every backend and instruction set of this machine and
// a list of types.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "tests/contract/contract.h"
#include "tests/support/subjects.h"

namespace cadre::contract {

class ContractSuite : public testing::TestWithParam<std::tuple<std::string, DTypes>> {
 protected:
  void SetUp() override {
    const std::string reason = tests::why_unavailable(std::get<0>(GetParam()));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  void expect(Check check) const {
    const auto& [backend, types] = GetParam();
    const tests::BackendUnderTest under_test(backend);
    tests::expect_none(check(under_test.subject(), types));
  }
};

/// A sanitizer looks for another kind of bug, in code that the instruction sets share.
inline std::vector<std::string> contract_subjects() {
  return tests::kSanitized ? tests::backend_names() : tests::backend_and_isa_names();
}

inline std::string name_of_param(
    const testing::TestParamInfo<std::tuple<std::string, DTypes>>& info) {
  return std::get<0>(info.param) + "_" + name_of_types(std::get<1>(info.param));
}

}  // namespace cadre::contract

#define CADRE_CONTRACT_SUITE(name, types)                                                 \
  class name : public ContractSuite {};                                                   \
  INSTANTIATE_TEST_SUITE_P(                                                               \
      All, name,                                                                          \
      testing::Combine(testing::ValuesIn(contract_subjects()), testing::ValuesIn(types)), \
      name_of_param)
