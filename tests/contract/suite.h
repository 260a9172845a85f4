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

using SuiteParam = std::tuple<std::string, DTypes>;

class ContractSuite : public testing::TestWithParam<SuiteParam> {
 protected:
  void SetUp() override {
    const std::string reason = tests::why_unavailable(std::get<0>(GetParam()));
    if (!reason.empty()) GTEST_SKIP() << reason;
  }

  void expect(Check check) const {
    const auto& [name, types] = GetParam();
    const tests::BackendUnderTest under_test(name);
    const tests::Restriction only = tests::restriction_of(name);
    tests::expect_none(check({under_test.subject(), only.kernel, only.fit}, types));
  }
};

/// A sanitizer looks for another kind of bug, in code that the instruction sets share.
inline std::vector<std::string> contract_subjects() {
  return tests::kSanitized ? tests::backend_names() : tests::backend_and_isa_names();
}

inline std::string name_of_param(const testing::TestParamInfo<SuiteParam>& info) {
  return std::get<0>(info.param) + "_" + name_of_types(std::get<1>(info.param));
}

/// Every backend with all of the types; then what takes a part of the op's problems ("gmm", "tgmm",
/// "grouped_gemm", "" for none) alone, with the types that it takes.
inline std::vector<SuiteParam> parameters(const std::string& op, const std::vector<DTypes>& types) {
  std::vector<SuiteParam> all;
  for (const std::string& name : contract_subjects()) {
    for (const DTypes& each : types) all.emplace_back(name, each);
  }
  for (const std::string& name : tests::restricted_names(op)) {
    const tests::Restriction only = tests::restriction_of(name);
    for (const DTypes& each : types) {
      if (only.takes(each.lhs, each.rhs, each.out)) all.emplace_back(name, each);
    }
  }
  return all;
}

}  // namespace cadre::contract

#define CADRE_CONTRACT_SUITE(name, op, types) \
  class name : public ContractSuite {};       \
  INSTANTIATE_TEST_SUITE_P(All, name, testing::ValuesIn(parameters(op, types)), name_of_param)
