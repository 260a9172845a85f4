// Random calls of every op on every CPU backend of this machine, against the exact result.
#include "verify/differential.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/support/subjects.h"

namespace cadre::verify {
namespace {

class Differential : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = tests::why_unavailable(GetParam()); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

TEST_P(Differential, RandomCasesAgreeWithTheExactResult) {
  const tests::BackendUnderTest backend(GetParam());
  DifferentialOptions options;
  options.cases = tests::kSanitized ? 300 : 2000;
  options.backend = tests::BackendUnderTest::options_for(GetParam()).backend;
  options.isa = tests::BackendUnderTest::options_for(GetParam()).isa;
  const DifferentialReport report = run_differential(backend.subject(), options);
  EXPECT_EQ(report.cases_run, options.cases);
  for (const CaseFailure& failure : report.failures) ADD_FAILURE() << to_string(failure);
}

TEST_P(Differential, ThreadsMayShareAContext) {
  const tests::BackendUnderTest backend(GetParam());
  constexpr int kThreads = 4;
  DifferentialReport reports[kThreads];
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      DifferentialOptions options;
      options.cases = tests::kSanitized ? 20 : 60;
      options.seed = 1000000 + 1000 * static_cast<uint64_t>(i);
      reports[i] = run_differential(backend.subject(), options);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const DifferentialReport& report : reports) {
    EXPECT_TRUE(report.passed());
    for (const CaseFailure& failure : report.failures) ADD_FAILURE() << to_string(failure);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Differential, testing::ValuesIn(tests::backend_and_isa_names()),
                         [](const auto& backend) { return backend.param; });

TEST(RandomCases, EveryOptionIsDrawn) {
  int64_t ops[4] = {};
  int64_t sharded = 0, lists = 0, packed = 0, many_groups = 0, int8 = 0, untouched = 0, nans = 0;
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    const Case c = random_case(seed);
    ++ops[static_cast<int>(c.op)];
    sharded += c.num_local_groups >= 0;
    lists += c.out_layout.form == Placement::kList;
    packed += c.lhs_layout.form == Placement::kPacked;
    many_groups += c.group_sizes.size() > 64;
    int8 += c.lhs == DType::kI8 && c.rhs == DType::kI8;
    untouched += c.tail == Tail::kUntouched;
    nans += c.nan_group >= 0;
  }
  for (int64_t count : ops) EXPECT_GT(count, 100);
  for (int64_t count : {sharded, lists, packed, many_groups, int8, untouched, nans}) {
    EXPECT_GT(count, 20);
  }
}

TEST(RandomCases, AFailureSaysHowToRepeatIt) {
  const CaseFailure failure{7,
                            "gmm ...",
                            {"out group 0 row 1 col 2: expected 1, got 2"},
                            "cadre verify --cases 1 --seed 7"};
  EXPECT_NE(to_string(failure).find("repeat with: cadre verify --cases 1 --seed 7"),
            std::string::npos);
}

}  // namespace
}  // namespace cadre::verify
