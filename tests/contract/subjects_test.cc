// The contract is kept by every instruction set of this machine, not by the best one alone.
#include <set>

#include "core/environment.h"
#include "cpu/isa.h"
#include "plan/context_state.h"
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

TEST(ContractSubjects, HoldEveryInstructionSetAndTheReference) {
  if (!environment::isa().empty() || !environment::backend().empty()) {
    GTEST_SKIP() << "CADRE_ISA or CADRE_BACKEND holds the suite to one";
  }
  if (tests::kSanitized) GTEST_SKIP() << "a sanitizer's build runs the best one alone";
  std::set<std::string_view> isas;
  bool reference = false;
  for (const std::string& name : contract_subjects()) {
    const Context context(tests::BackendUnderTest::options_for(name));
    ASSERT_TRUE(context.status().ok()) << context.status().message();
    reference = reference || context.state().backend == "reference";
    if (context.state().backend != "cpu") continue;
    cpu::Isa isa{};
    ASSERT_TRUE(cpu::resolve_isa(context.state().isa, &isa).ok());
    EXPECT_TRUE(isas.insert(cpu::name_of(isa)).second) << cpu::name_of(isa) << " twice";
  }
  EXPECT_TRUE(reference);
  for (const cpu::Isa isa : cpu::available_isas()) {
    EXPECT_EQ(isas.count(cpu::name_of(isa)), 1u) << cpu::name_of(isa);
  }
}

}  // namespace
}  // namespace cadre::contract
