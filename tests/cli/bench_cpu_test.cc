// cadre bench --device cpu: every field of the result file, and errors before anything is measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "run_cli.h"

namespace cadre::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// How many spans a track of a trace has; they are checked.
int spans_of(const char* path, const std::string& track, const std::string& command) {
  const json document = json::parse(std::ifstream(path));
  EXPECT_EQ(document["otherData"]["command"], command);
  int id = 0, spans = 0;
  double free_at = 0;
  for (const json& event : document["traceEvents"]) {
    if (event["name"] == "thread_name" && event["args"]["name"] == track) id = event["tid"];
    if (event["ph"] != "X" || event["tid"] != id) continue;
    EXPECT_THAT(event["name"].get<std::string>(), HasSubstr("gmm_nt bf16 decode-qwen3-30b-w2"));
    EXPECT_GE(event["ts"].get<double>(), free_at);
    EXPECT_GT(event["dur"].get<double>(), 0);
    free_at = event["ts"].get<double>() + event["dur"].get<double>();
    ++spans;
  }
  return spans;
}

TEST(CliBenchCpu, ResultFileHoldsEveryField) {
  const TemporaryFile file, trace;
  const CliResult result = run_cli(std::string("bench --device cpu --op gmm_nt --dtype bf16 "
                                               "--shape decode-qwen3-30b-w2 --repeats 1 --json ") +
                                       file.path() + " --trace " + trace.path(),
                                   "CADRE_NUM_THREADS=1 CADRE_ISA=scalar");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(std::ifstream(file.path()));
  for (const char* field : {"schema", "machine", "command", "environment", "results"}) {
    EXPECT_TRUE(document.contains(field)) << field;
  }
  EXPECT_EQ(document["schema"], 2);
  // Which rivals there could be, whether or not they take a row's types.
  ASSERT_TRUE(document["rivals"].is_object());
  if (document["rivals"].empty()) {
    EXPECT_THAT(result.out, HasSubstr("rivals: none in this build"));
  }
  for (const auto& [name, version] : document["rivals"].items()) {
    EXPECT_THAT(result.out, HasSubstr(name + " " + version.get<std::string>()));
  }
  EXPECT_EQ(document["checks_passed"], true);
  EXPECT_EQ(document["environment"]["CADRE_ISA"], "scalar");
  EXPECT_EQ(document["environment"]["CADRE_NUM_THREADS"], "1");
  const auto command = document["command"].get<std::string>();
  EXPECT_THAT(command, AllOf(HasSubstr("CADRE_ISA=scalar "), HasSubstr("CADRE_NUM_THREADS=1 ")));
  EXPECT_THAT(command, HasSubstr("cadre bench --device cpu --op gmm_nt "));
  EXPECT_THAT(command, HasSubstr(" --shape decode-qwen3-30b-w2 --dtype bf16 --repeats 1"));
  EXPECT_THAT(command, Not(HasSubstr("trace")));
  EXPECT_EQ(spans_of(trace.path(), "cases", command), 3);
  EXPECT_EQ(spans_of(trace.path(), "cadre", command), 3);  // one round each
  ASSERT_EQ(document["results"].size(), 3u);
  EXPECT_EQ(document["results"][0]["label"], "decode-qwen3-30b-w2");
  EXPECT_EQ(document["results"][1]["label"], "decode-qwen3-30b-w2 skewed");
  EXPECT_EQ(document["results"][2]["label"], "decode-qwen3-30b-w2 90% in one");
  for (const json& row : document["results"]) {
    for (const char* field : {"op", "dtype", "m", "k", "n", "num_groups", "threads", "median_s",
                              "gflops", "limit_gflops", "share", "max_error", "rivals"}) {
      EXPECT_TRUE(row.contains(field)) << field;
    }
    EXPECT_EQ(row["op"], "gmm_nt");
    EXPECT_EQ(row["threads"], 1);
    EXPECT_EQ(row["kernel"], "cpu/scalar");
    EXPECT_EQ(row["num_groups"], 128);
    EXPECT_GT(row["median_s"].get<double>(), 0);
    EXPECT_GT(row["limit_gflops"].get<double>(), 0);
  }
}

TEST(CliBenchCpu, BadOptionsAreUsageErrorsThatListWhatThereIs) {
  const struct {
    const char* arguments;
    const char* expected;
  } cases[] = {{"--op gnn", "expected gmm, gmm_nt"},
               {"--dtype f8", "expected f64, f32, bf16, f16, i8 or e4m3"},
               {"--dtype bf16,nonesuch", "--dtype = nonesuch"},
               {"--op tgmm --dtype e4m3", "leave no case (e4m3 is measured in gmm_nt"},
               {"--op layer --rows 4", "leave no case"},
               {"--trace ''", "expected the name of a file"},
               {"--trace /nonexistent/trace.json", "--trace"},
               {"--shape nonesuch", "qwen3-30b-w13"},
               {"--threads 0", "--threads"},
               {"--threads 4097", "--threads"},
               {"--rows -4", "--rows"},
               {"--rows 99999999999999999999", "--rows"},
               {"--rows 1e3", "--rows"},
               {"--rows 4 --shape decode", "--rows and --shape, expected one of them"},
               {"--repeats 2147483648", "--repeats"},
               {"--seconds nan", "expected a number from 0.001 to 3600, got \"nan\""},
               {"--seconds inf", "--seconds"},
               {"--seconds -1", "--seconds"},
               {"--seconds 0", "--seconds"},
               {"--seconds 1e999", "--seconds"},
               {"--seconds 1s", "--seconds"}};
  for (const auto& bad : cases) {
    const CliResult result = run_cli(std::string("bench --device cpu ") + bad.arguments);
    EXPECT_EQ(result.exit_code, 2) << bad.arguments;
    EXPECT_THAT(result.err, HasSubstr(bad.expected));
  }
}

TEST(CliBenchCpu, RowsAndThreadsLeaveTheCasesAskedFor) {
  const TemporaryFile file;
  const CliResult result = run_cli(std::string("bench --device cpu --op gmm --dtype i8 --rows 2,3 "
                                               "--threads 1 --seconds 0.01 --repeats 5 --json ") +
                                   file.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(std::ifstream(file.path()));
  ASSERT_EQ(document["results"].size(), 2u);
  EXPECT_THAT(document["command"].get<std::string>(), HasSubstr("--rows 2 --rows 3 --threads 1"));
  for (size_t i = 0; i < 2; ++i) {
    const json& row = document["results"][i];
    EXPECT_EQ(row["m"], row["num_groups"].get<int64_t>() * static_cast<int64_t>(2 + i));
    EXPECT_EQ(row["threads"], 1);
    EXPECT_EQ(row["rounds"], 5);
    for (const auto& [name, rival] : row["rivals"].items()) {
      EXPECT_LE(rival["times_ours_low"].get<double>(), rival["times_ours"].get<double>()) << name;
      EXPECT_GE(rival["times_ours_high"].get<double>(), rival["times_ours"].get<double>()) << name;
    }
  }
}

TEST(CliBenchCpu, AQuickRunHasTwoRungsAndEndsWithASummary) {
  const TemporaryFile file;
  const CliResult result =
      run_cli(std::string("bench --device cpu --quick --op gmm --dtype i8 --threads 1 --repeats 1 "
                          "--seconds 0.01 --json ") +
              file.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(std::ifstream(file.path()));
  ASSERT_EQ(document["results"].size(), 2u);
  EXPECT_EQ(document["results"][0]["label"], "4 rows");
  EXPECT_EQ(document["results"][1]["label"], "256 rows");
  EXPECT_GT(document["results"][1]["cpu_share"].get<double>(), 0);
  EXPECT_THAT(document["command"].get<std::string>(), HasSubstr("--quick"));
  EXPECT_THAT(result.out, HasSubstr("\nSummary: 2 cases in "));
}

/// Two threads on one CPU are a machine that is busy for sure.
TEST(CliBenchCpu, ABusyMachineIsSaidToBeBusy) {
  const CliResult result = run_cli(
      "bench --device cpu --op gmm --dtype i8 --rows 3 --threads 2 --repeats 1 --seconds 0.01",
      "CADRE_NUM_THREADS=2 taskset -c $(taskset -cp $$ | sed 's/.*[:,-] *//')");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("This machine is too busy to measure: of 2 threads the slowest"),
                    HasSubstr("% busy"), HasSubstr("too busy in 1 of 1 cases")));
}

/// Left out of a run of everything, but measured when it is named.
TEST(CliBenchCpu, Int8GradientsAreMeasuredWhenTheyAreNamed) {
  const TemporaryFile file;
  const CliResult result =
      run_cli(std::string("bench --device cpu --op tgmm --dtype i8 --rows 3 --threads 1 "
                          "--seconds 0.01 --repeats 1 --json ") +
              file.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json results = json::parse(std::ifstream(file.path()))["results"];
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0]["op"], "tgmm");
  EXPECT_EQ(results[0]["dtype"], "i8");
  EXPECT_EQ(results[0]["max_error"], 0);
}

/// The limits of a row are those of its threads, so these must exist.
TEST(CliBenchCpu, ThreadsThatTheSystemDoesNotStartAreAnError) {
  const TemporaryFile file;
  const CliResult result =
      run_cli(std::string("bench --device cpu --rows 4 --threads 4000 --json ") + file.path(),
              "ulimit -v 4000000;");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("4000 threads wanted, but the system starts "));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::ifstream(file.path()).peek(), std::ifstream::traits_type::eof());
}

/// `name` of the rows, joined.
std::string joined(const json& rows, const char* name) {
  std::string all;
  for (const json& row : rows) all += row[name].get<std::string>() + "; ";
  return all;
}

TEST(CliBenchCpu, ALayerIsCheckedAndTimedForwardAndInATrainingStep) {
  for (const char* dtype : {"f32", "bf16"}) {
    const TemporaryFile file;
    const CliResult result =
        run_cli(std::string("bench --device cpu --op layer --dtype ") + dtype +
                " --threads 2 --seconds 0.01 --repeats 1 --json " + file.path());
    ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
    const json results = json::parse(std::ifstream(file.path()))["results"];
    ASSERT_EQ(joined(results, "label"), "qwen3-30b forward; qwen3-30b training step; ");
    for (const json& row : results) {
      EXPECT_EQ(row["op"], "layer");
      EXPECT_EQ(row["dtype"], dtype);
      EXPECT_EQ(row["m"], row["tokens"].get<int64_t>() * 8);
      EXPECT_EQ(row["num_groups"], 128);
      EXPECT_GT(row["error_over_tolerance"].get<double>(), 0) << "nothing was compared";
      EXPECT_LE(row["error_over_tolerance"].get<double>(), 1);
      const double operations = row["m"].get<double>() * row["hidden"].get<double>() *
                                row["intermediate"].get<double>() *
                                (row["case"] == "layer forward" ? 6 : 18);
      EXPECT_NEAR(row["gflops"].get<double>() * 1e9 * row["median_s"].get<double>() / operations, 1,
                  1e-9);
    }
  }
}

TEST(CliBenchCpu, SeveralTypesAreMeasuredInTheirOrder) {
  const TemporaryFile file;
  const CliResult result =
      run_cli(std::string("bench --device cpu --op gmm --dtype i8,bf16 --rows 2 --threads 1 "
                          "--seconds 0.01 --repeats 1 --json ") +
              file.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(std::ifstream(file.path()));
  EXPECT_EQ(joined(document["results"], "dtype"), "i8; bf16; ");
  EXPECT_THAT(document["command"].get<std::string>(), HasSubstr("--dtype i8 --dtype bf16"));
}

/// The reference computes everything, but its time says nothing: without a fast kernel a case is a
/// row that says so. With one it is checked and timed.
TEST(CliBenchCpu, Fp8IsMeasuredOrItsRefusalIsARow) {
  const TemporaryFile file;
  const CliResult result =
      run_cli(std::string("bench --device cpu --dtype e4m3 --rows 2 --threads 1 --seconds 0.01 "
                          "--repeats 1 --json ") +
              file.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json results = json::parse(std::ifstream(file.path()))["results"];
  ASSERT_EQ(joined(results, "scales"), "block_128; row; ");
  for (const json& row : results) {
    EXPECT_EQ(row["op"], "gmm_nt");
    if (row.contains("refused")) {
      EXPECT_THAT(row["refused"].get<std::string>(), testing::StartsWith("cpu: "));
      EXPECT_FALSE(row.contains("median_s"));
      EXPECT_THAT(result.out, HasSubstr(row["refused"].get<std::string>()));
    } else {
      EXPECT_THAT(row["kernel"].get<std::string>(), testing::StartsWith("cpu/"));
      EXPECT_GT(row["error_over_tolerance"].get<double>(), 0);
    }
  }
}

TEST(CliBenchCpu, OptionsOfTheCpuAreRefusedForAGpu) {
  const CliResult result = run_cli("bench --device cuda --threads 2");
  EXPECT_EQ(result.exit_code, 2);
}

TEST(CliBenchCpu, UnknownIsaListsWhatThereIs) {
  const CliResult result = run_cli("bench --device cpu", "CADRE_ISA=avx1024");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("scalar"));
}

}  // namespace
}  // namespace cadre::test
