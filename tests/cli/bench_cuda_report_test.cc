// What is measured on a GPU and what its result file holds, with times that are made up.
#include "bench_cuda_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace cadre::cli {
namespace {

using bench::CaseFilter;
using bench::CaseGroup;
using bench::Condition;
using nlohmann::json;
using ::testing::HasSubstr;

std::vector<CaseGroup> groups_of(const CaseFilter& filter) {
  std::vector<CaseGroup> groups;
  const Status status = make_case_groups(filter, &groups);
  EXPECT_TRUE(status.ok()) << status.message();
  return groups;
}

/// Rows as a run would write them; every case takes 2 s (4 in a sustained loop), every dense
/// product 1 s, every baseline 3.
json rows_of(const std::vector<CaseGroup>& groups, bool with_dense) {
  json rows = json::array();
  for (const CaseGroup& group : groups) {
    for (const bench::Case& one : group.cases) {
      bench::Measurement measured{
          .kernel = "made/up", .check = {.elements = 24, .ratio = 0.5}, .used_groups = 3};
      for (const Condition condition : group.conditions) {
        if (condition != Condition::kMixed && !one.alone) continue;
        bench::Timing timing{.condition = condition, .calls = 11, .times = {2.0, 1.5, 2.5}};
        if (condition == Condition::kSustained) timing.times = {4.0, 4.0, 4.0};
        if (with_dense && group.dense) timing.dense = {1.0, 1.0, 1.0};
        if (one.baseline != bench::Baseline::kNone) timing.baseline = {3.0, 3.0, 3.0};
        if (timing.dense && one.dtype == DType::kF16) timing.baseline_dense = {1.2, 1.2, 1.2};
        measured.timings.push_back(timing);
      }
      for (const json& row : result_rows(group, one, measured)) rows.push_back(row);
    }
  }
  return rows;
}

int count_rows(const json& rows, const json& where) {
  int count = 0;
  for (const json& row : rows) {
    bool same = true;
    for (const auto& [name, value] : where.items()) {
      same &= row.contains(name) && row[name] == value;
    }
    count += same ? 1 : 0;
  }
  return count;
}

TEST(CudaCases, EveryTrainingShapeIsMeasuredInEveryDirectionTypeAndSkew) {
  const json rows = rows_of(groups_of({}), true);
  for (const shapes::Shape& shape : shapes::tagged("train")) {
    for (const char* name : {"forward", "dgrad", "wgrad"}) {
      for (const double skew : {0.0, 1.0}) {
        for (const char* dtype : {"bf16", "f16"}) {
          EXPECT_EQ(count_rows(rows, {{"shape", shape.name},
                                      {"case", name},
                                      {"skew", skew},
                                      {"dtype", dtype},
                                      {"condition", "mixed"},
                                      {"of_dense", 0.5}}),
                    1)
              << shape.name << name;
        }
        EXPECT_EQ(count_rows(rows, {{"shape", shape.name},
                                    {"case", "wgrad f32 accumulate"},
                                    {"skew", skew},
                                    {"condition", "mixed"},
                                    {"out_dtype", "f32"}}),
                  1);
      }
    }
    EXPECT_EQ(count_rows(rows, {{"shape", shape.name}, {"case", "portable wgrad"}}),
              shape.m() / shape.num_groups >= 512 ? 1 : 0);
    for (const char* option :
         {"bias", "bias and scales", "alpha, beta and C", "accumulate", "f32 out", "f32 accumulate",
          "list of weights", "list of weights on device"}) {
      EXPECT_EQ(count_rows(rows, {{"shape", shape.name}, {"case", option}, {"of_plain", 1.5}}), 1);
    }
  }
}

TEST(CudaCases, DecodeCountsTheWeightsOfExpertsWithRowsAndNeedsNoDense) {
  const json rows =
      rows_of(groups_of({.shapes = {"decode"}, .conditions = {"mixed"}, .dtypes = {"bf16"}}), true);
  EXPECT_EQ(rows.size(), 4u * 2 * 2 * 2);  // shapes, skews, layouts, flushes
  for (const json& row : rows) {
    EXPECT_FALSE(row.contains("of_dense"));
    const double bytes = 3.0 * row["k"].get<double>() * row["n"].get<double>() * 2;
    EXPECT_DOUBLE_EQ(row["weights_tb_per_s"].get<double>(), bytes / 2.0 * 1e-12);
  }
  EXPECT_EQ(count_rows(rows, {{"flush", "read"}, {"case", "decode forward"}}), 8);
}

TEST(CudaCases, FiltersHoldTheRunToWhatTheyName) {
  const json tgmm = rows_of(
      groups_of({.ops = {"tgmm"}, .shapes = {"qwen3-30b-w2"}, .conditions = {"mixed"}}), true);
  EXPECT_EQ(tgmm.size(), 2u * 5);  // skews; bf16, f16 and three that accumulate
  EXPECT_EQ(count_rows(tgmm, {{"op", "tgmm"}}), 10);
  for (const json& row : rows_of(groups_of({.skews = {1}}), true)) EXPECT_EQ(row["skew"], 1.0);
  const json portable = rows_of(groups_of({.ops = {"portable"}}), true);
  EXPECT_EQ(portable.size(), 8u * 3);
  EXPECT_TRUE(groups_of({.ops = {"host"}}).empty());
  EXPECT_TRUE(bench::wants_host_cost({.ops = {"gmm", "host"}}));
  EXPECT_FALSE(bench::wants_host_cost({.ops = {"gmm"}}));
  for (const json& row : rows_of(groups_of({.dtypes = {"f16"}}), true)) {
    EXPECT_EQ(row["dtype"], "f16");
    EXPECT_FALSE(row.contains("of_bf16"));  // nothing to compare with in this run
  }
}

TEST(CudaCases, APinnedKernelIsForEveryCaseButThePortableOnes) {
  int portable = 0;
  for (const CaseGroup& group : groups_of({.shapes = {"train"}, .kernel = "sm90/made_up"})) {
    for (const bench::Case& one : group.cases) {
      EXPECT_EQ(one.kernel, one.portable ? "" : "sm90/made_up") << one.name;
      portable += one.portable ? 1 : 0;
    }
  }
  EXPECT_EQ(portable, 8 * 3);
}

TEST(CudaCases, EveryComparisonIsWithTheCaseItNames) {
  for (const CaseGroup& group : groups_of({})) {
    for (size_t i = 0; i < group.cases.size(); ++i) {
      const bench::Case& one = group.cases[i];
      if (one.dtype == DType::kF16) {
        EXPECT_EQ(one.baseline, bench::Baseline::kBf16) << one.name;
      }
      if (one.baseline == bench::Baseline::kNone) continue;
      ASSERT_LT(one.baseline_case, i);
      const bench::Case& other = group.cases[one.baseline_case];
      if (one.baseline == bench::Baseline::kBf16) {
        EXPECT_EQ(other.name, one.name);
        EXPECT_EQ(other.dtype, DType::kBF16);
      } else {
        EXPECT_EQ(other.name, group.pass == bench::Pass::kWgrad ? "wgrad f32 accumulate" : "plain");
      }
    }
  }
}

TEST(CudaConditions, EveryBf16ProductIsTimedSustainedRestedAndMixedInThisOrder) {
  const std::vector<std::string> in_order = {"sustained", "rested", "mixed"};
  const json rows = rows_of(groups_of({.shapes = {"qwen3-30b-w13"}}), true);
  for (const char* name : {"forward", "dgrad", "wgrad", "wgrad f32 accumulate"}) {
    for (const double skew : {0.0, 1.0}) {
      std::vector<std::string> found;
      for (const json& row : rows) {
        if (row["case"] != name || row["skew"] != skew || row["dtype"] != "bf16") continue;
        found.push_back(row["condition"].get<std::string>());
      }
      EXPECT_EQ(found, in_order) << name;
    }
  }
  const json decode =
      rows_of(groups_of({.shapes = {"decode-qwen3-30b-w2"}, .dtypes = {"bf16"}}), true);
  EXPECT_EQ(count_rows(decode, {{"condition", "sustained"}}), 2 * 2);  // skews, layouts
  EXPECT_EQ(count_rows(decode, {{"condition", "sustained"}, {"flush", "none"}}), 2 * 2);
  EXPECT_EQ(count_rows(decode, {{"condition", "rested"}, {"flush", "write"}}), 2 * 2);
}

TEST(CudaConditions, WhatIsComparedWithAnotherCaseIsTimedInTurnAlone) {
  const json rows = rows_of(groups_of({}), true);
  EXPECT_EQ(count_rows(rows, {{"dtype", "f16"}}),
            count_rows(rows, {{"dtype", "f16"}, {"condition", "mixed"}}));
  for (const json& row : rows) {
    if (row["condition"] == "mixed") continue;
    EXPECT_FALSE(row.contains("of_plain") || row.contains("of_bf16")) << row;
    EXPECT_EQ(row["case"].get<std::string>().find("portable"), std::string::npos) << row;
  }
}

TEST(CudaConditions, AFilterHoldsTheRunToItsConditions) {
  const json rows = rows_of(groups_of({.conditions = {"sustained"}}), true);
  EXPECT_EQ(static_cast<size_t>(count_rows(rows, {{"condition", "sustained"}})), rows.size());
  // Shapes, skews, passes and main_grad; shapes, skews, layouts.
  EXPECT_EQ(rows.size(), 10u * 2 * 4 + 4u * 2 * 2);
  EXPECT_TRUE(groups_of({.ops = {"options", "portable"}, .conditions = {"rested"}}).empty());
}

TEST(CudaConditions, ASustainedLoopHasItsLeadAndItsBatches) {
  const bench::SustainedPlan fast = bench::plan_sustained(50e-6);
  EXPECT_EQ(fast.lead_calls, 6000);     // 0.3 s
  EXPECT_EQ(fast.calls_of_batch, 200);  // 10 ms
  const bench::SustainedPlan slow = bench::plan_sustained(0.5);
  EXPECT_EQ(slow.lead_calls, 1);
  EXPECT_EQ(slow.calls_of_batch, 1);
  EXPECT_GT(bench::plan_sustained(0).lead_calls, 0);  // a clock that saw nothing ends all the same
}

TEST(CudaReport, RowsHaveTheFieldsOfTheCpuBenchAndTheRatios) {
  const json rows =
      rows_of(groups_of({.shapes = {"mixtral-8x7b-w13"}, .conditions = {"mixed"}}), true);
  for (const json& row : rows) {
    for (const char* field : {"op", "case", "shape", "skew", "dtype", "m", "k", "n", "num_groups",
                              "median_s", "gflops", "max_error", "kernel", "condition"}) {
      EXPECT_TRUE(row.contains(field)) << field;
    }
    EXPECT_EQ(row["num_groups"], 8);
    EXPECT_EQ(row["repeats"], 11);
    EXPECT_EQ(row["checked"], true);
    const double operations = 2.0 * 16384 * 4096 * 28672;
    EXPECT_DOUBLE_EQ(row["gflops"].get<double>(), operations / 2.0 * 1e-9);
    if (row["dtype"] == "f16") {
      EXPECT_DOUBLE_EQ(row["of_bf16"].get<double>(), 1.5);
      EXPECT_DOUBLE_EQ(row["of_bf16_share"].get<double>(), (1.0 / 2.0) / (1.2 / 3.0));
    }
    EXPECT_EQ(table_cells(row).size(), 12u);
  }
}

TEST(CudaReport, WithoutCublasSharesAreMissingAndNotWrong) {
  const json rows = rows_of(groups_of({}), false);
  for (const json& row : rows) {
    EXPECT_FALSE(row.contains("of_dense"));
    EXPECT_FALSE(row.contains("dense_gflops"));
  }
  for (const Condition condition : bench::kConditions) {
    EXPECT_EQ(ratio_matrix(rows, condition), "");
  }
}

TEST(CudaReport, AFailedCheckIsSeenInTheRowAndTheTable) {
  const std::vector<CaseGroup> groups = groups_of({.ops = {"gmm"}, .shapes = {"qwen3-30b-w2"}});
  const bench::Checked bad[] = {
      {},                                   // nothing was looked at
      {.elements = 24, .not_finite = 1},    // an element was never written
      {.elements = 24, .ratio = 1.000001},  // an element is off by more than its tolerance
  };
  for (const bench::Checked& check : bad) {
    const bench::Measurement measured{
        .check = check, .used_groups = 1, .timings = {{.times = {1, 1, 1}}}};
    const json row = result_rows(groups[0], groups[0].cases[0], measured)[0];
    EXPECT_EQ(row["checked"], false);
    const std::vector<std::string> cells = table_cells(row);
    EXPECT_NE(std::find(cells.begin(), cells.end(), "FAIL"), cells.end());
  }
}

TEST(CudaReport, MatrixShowsBothSkewsOfABf16Product) {
  const json rows = rows_of(groups_of({.ops = {"gmm_nt"}, .shapes = {"train"}}), true);
  const std::string matrix = ratio_matrix(rows, Condition::kMixed);
  const auto shapes = static_cast<std::ptrdiff_t>(shapes::tagged("train").size());
  EXPECT_EQ(std::count(matrix.begin(), matrix.end(), '\n'), shapes + 2);
  EXPECT_THAT(matrix, HasSubstr("share of dense, mixed"));
  EXPECT_THAT(matrix, HasSubstr("0.500 / 0.500"));
  const std::string sustained = ratio_matrix(rows, Condition::kSustained);
  EXPECT_THAT(sustained, HasSubstr("share of dense, sustained"));
  EXPECT_THAT(sustained, HasSubstr("0.250 / 0.250"));
}

TEST(CudaReport, TheRunSaysWhatItWasComparedWith) {
  const json row = machine_row({.dense_library = "libcublas.so.13", .copy_rate = 4e12});
  EXPECT_EQ(row["dense_library"], "libcublas.so.13");
  EXPECT_DOUBLE_EQ(row["copy_tb_per_s"].get<double>(), 4.0);
  EXPECT_EQ(ratio_matrix(json::array({row}), Condition::kSustained), "");
}

TEST(CudaReport, HostCostIsInSeconds) {
  const json row = host_cost_row({.op = "tgmm", .times = {4e-6, 3e-6, 9e-6}});
  EXPECT_EQ(row["case"], "host cost");
  EXPECT_DOUBLE_EQ(row["host_seconds_per_call"].get<double>(), 4e-6);
}

TEST(CudaReport, TimesAreTheMedianAndTheEnds) {
  const bench::Times times = bench::times_of({3, 1, 2, 5, 4});
  EXPECT_EQ(times.median_s, 3);
  EXPECT_EQ(times.least_s, 1);
  EXPECT_EQ(times.greatest_s, 5);
}

}  // namespace
}  // namespace cadre::cli
