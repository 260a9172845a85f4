// The summary of `cadre bench --device cpu`: which rows count, and what is said of the others.
#include "bench_cpu_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cadre::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(BenchCpuSummary, MeansOfQuietRowsForEachNumberOfThreads) {
  const std::string text = summary_of(
      {{.name = "gmm f32 4 rows", .threads = 1, .share = 0.9, .times_ours = {{"onednn", 2.0}}},
       {.name = "gmm f32 256 rows", .threads = 1, .share = 0.4, .times_ours = {{"onednn", 8.0}}},
       {.name = "gmm f32 4 rows", .threads = 2, .share = 0.8}},
      {.seconds = 12});
  EXPECT_THAT(text, AllOf(HasSubstr("Summary: 3 cases in 12 s"),
                          HasSubstr("1 thread: 60 % of this machine's limit"),
                          HasSubstr("worst 40 %: gmm f32 256 rows"),
                          HasSubstr("onednn takes 4.00 times as long (2 cases)"),
                          HasSubstr("2 threads: 80 %"), Not(HasSubstr("busy")),
                          Not(HasSubstr("above 100 %")), Not(HasSubstr("No time"))));
}

TEST(BenchCpuSummary, RowsOfABusyMachineAreNamedAndDoNotCount) {
  const std::string text =
      summary_of({{.name = "gmm f32 4 rows", .share = 0.9},
                  {.name = "gmm f32 256 rows", .share = 0.1, .cpu_share = 0.48}},
                 {.seconds = 3, .refused = 5, .left_out = 7});
  EXPECT_THAT(text, AllOf(HasSubstr("1 thread: 90 % of"), HasSubstr("too busy in 1 of 2 cases"),
                          HasSubstr("as little as 48 % of a CPU"),
                          HasSubstr("5 cases were refused: the reference alone"),
                          HasSubstr("No time was left for 7 more cases")));
}

TEST(BenchCpuSummary, AShareAboveTheLimitIsExplained) {
  const std::string text = summary_of({{.name = "gmm i8 4 rows", .share = 6.46}}, {.seconds = 3});
  EXPECT_THAT(text, AllOf(HasSubstr("1 of 1 cases are above 100 %"), HasSubstr("up to 646 %"),
                          Not(HasSubstr("of this machine's limit"))));
}

}  // namespace
}  // namespace cadre::cli
