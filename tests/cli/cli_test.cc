// The command line tool: exit codes, JSON, help and error texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cadre/version.h"
#include "run_cli.h"

namespace cadre::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr char kProblem[] = "explain --m 300 --k 64 --n 96 --groups 8 --dtype bf16 ";

TEST(Cli, VersionIsTheLibrarys) {
  const CliResult result = run_cli("--version");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, std::string(CADRE_VERSION_STRING) + "\n");
}

TEST(Cli, HelpNamesExamplesAndExitCodes) {
  const CliResult result = run_cli("--help");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("Examples:"), HasSubstr("Exit codes: 0 ok")));
  for (const char* command : {"info", "demo", "verify", "explain", "schedule", "bench"}) {
    EXPECT_THAT(result.out, HasSubstr(command));
    const CliResult help = run_cli(std::string(command) + " --help");
    EXPECT_EQ(help.exit_code, 0) << command;
    EXPECT_THAT(help.out, AllOf(HasSubstr("Examples:"), HasSubstr("--json"))) << command;
  }
}

TEST(Cli, ScheduleGivesEveryTileToOneSmAtATime) {
  const TemporaryFile file;
  const CliResult result = run_cli(
      std::string(
          "schedule --shape decode-qwen3-30b-w2 --features 96 --tokens 16 --sms 7 --json ") +
      file.path());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto document = nlohmann::json::parse(std::ifstream(file.path()));
  const auto& row = document["results"][0];
  EXPECT_EQ(document["schema"], 2);
  EXPECT_THAT(row["source"].get<std::string>(), HasSubstr("computed"));
  EXPECT_EQ(row["recorded"], false);
  std::map<int, int64_t> free_at;
  for (const auto& tile : row["tiles"]) {  // sm, group, start, end
    EXPECT_GE(tile[2].get<int64_t>(), free_at[tile[0].get<int>()]);
    EXPECT_GT(tile[3], tile[2]);
    free_at[tile[0].get<int>()] = tile[3];
  }
  EXPECT_EQ(free_at.size(), 7u);
  // 2048 features in 22 tiles; 128 experts of at most 20 rows have one or two tiles of tokens.
  EXPECT_EQ(row["tiles"].size() % 22, 0u);
  EXPECT_GE(row["tiles"].size(), 128u * 22);
}

// Without a recording build and a GPU it says what is missing, and leaves the file alone.
TEST(Cli, ScheduleIsRecordedWhereKernelsRecordAlone) {
  const TemporaryFile file;
  const CliResult result =
      run_cli(std::string("schedule --record --shape decode-qwen3-30b-w2 --json ") + file.path());
  if (result.exit_code == 0) {
    const auto row = nlohmann::json::parse(std::ifstream(file.path()))["results"][0];
    EXPECT_EQ(row["recorded"], true);
    EXPECT_GE(row["tiles"].size(), 128u);
    return;
  }
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, AnyOf(HasSubstr("-DCADRE_CUDA_RECORD=ON"), HasSubstr("there is none"),
                                HasSubstr("records no tiles")));
  EXPECT_EQ(std::ifstream(file.path()).peek(), EOF);
}

TEST(Cli, BadUsageIsTwoAndSaysWhatIsWrong) {
  struct Row {
    const char* arguments;
    const char* message;
  };
  const Row rows[] = {
      {"", "subcommand is required"},
      {"frobnicate", "unknown command \"frobnicate\""},
      {"info --frobnicate", "--frobnicate"},
      {"demo --size huge", "huge not in"},
      {"schedule --shape qwen4", "--shape = qwen4, expected one of mixtral-8x7b-w13"},
      {"schedule --sms 0", "--sms: expected a whole number from 1 to"},
      {"schedule --record --sms 7", "--sms excludes --record"},
      {"schedule --op tgmm", "--op requires --record"},
      {"schedule --record --op gmm_tn", "gmm_tn not in"},
      {"demo --dtype i8", "i8 not in"},
      {"demo --backend nonesuch", "backend = \"nonesuch\", expected one of"},
      {"explain --k 4 --n 4 --groups 1", "--m is required"},
      {"explain --m 4 --n 4 --groups 1", "--k is missing"},
      {"explain --m -1 --k 4 --n 4 --groups 1", "--m: expected a whole number from 0 to 10"},
      {"explain --m 99999999999999999999 --k 4 --n 4 --groups 1", "got \"99999999999999999999\""},
      {"explain --m 4 --k x --n 4 --groups 1", "--k: expected a whole number"},
      {"explain --m 4 --k 4 --n 1.5 --groups 1", "--n: expected a whole number"},
      {"explain --m 4 --k 4 --n 4 --groups -4", "--groups: expected a whole number from 0 to"},
      {"explain --m 4 --k 4 --n 4 --groups 1 --local-groups -5", "from 0 to 1048576, got \"-5\""},
      {"explain --m 4 --k 4 --n 4 --groups 1 --average-rows -1", "--average-rows: expected"},
      {"explain --m 4 --k 4 --n 4 --groups 1 --lhs-row-stride x", "--lhs-row-stride: expected"},
      {"explain --m 4 --k 4 --n 4 --groups 1 --align 3", "3 not in {1,2,4"},
      {"verify --cases 0", "--cases: expected a whole number from 1 to 1000000000, got \"0\""},
      {"verify --seed -1", "--seed: expected a whole number from 0 to"},
      {"verify --max-failures 1e3", "--max-failures: expected a whole number from 1 to"},
      {"bench --repeats 0", "--repeats: expected a whole number from 1 to 1000000, got \"0\""},
      {"bench --rows 4,0", "--rows: expected a whole number from 1 to 1000000, got \"0\""},
      {"bench --threads 5000", "--threads: expected a whole number from 1 to 4096, got"},
      {"bench --seconds 0", "--seconds: expected a number from 0.001 to 3600, got"},
      {"bench --repeats many", "--repeats: expected a whole number from 1 to 1000000"},
      {"explain --m 4 --k 4 --n 4 --groups 1 --dtype q4", "--dtype = q4"},
      {"explain --m 4 --k 4 --n 4 --groups 1 --dtype i32", "--rhs-dtype = i32"},
      {"explain --m 4 --k 4 --n 4 --groups 1 --device tpu", "--device = tpu"},
      {"explain --m 4 --k 4 --n 4 --groups 1 --device-sizes", "expected --device cuda"},
      {"explain --m 4 --k 4 --n 4 --groups 1 --local-groups 2", "expected at least"},
      {"explain --op tgmm --m 4 --k 4 --n 4 --groups 1 --bias", "--op tgmm has no such option"},
      {"explain --op bias_grad --m 4 --k 4 --n 4 --groups 1", "--k is given"},
      {"bench --device tpu", "tpu not in"},
  };
  for (const Row& row : rows) {
    const CliResult result = run_cli(row.arguments);
    EXPECT_EQ(result.exit_code, 2) << row.arguments;
    EXPECT_THAT(result.err, HasSubstr(row.message)) << row.arguments;
    EXPECT_LT(result.err.size(), 300u) << row.arguments;
    EXPECT_EQ(result.out, "") << row.arguments;
  }
}

TEST(Cli, BadEnvironmentIsReported) {
  const CliResult result = run_cli("info", "CADRE_NUM_THREADS=none");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err,
              HasSubstr("CADRE_NUM_THREADS = \"none\", expected a whole number from 1 to"));
  const CliResult check = run_cli("info", "CADRE_CHECK=maybe");
  EXPECT_EQ(check.exit_code, 2);
  EXPECT_THAT(check.err, HasSubstr("CADRE_CHECK = \"maybe\", expected 0 or 1"));
  const CliResult isa = run_cli("info", "CADRE_ISA=avx1024");
  EXPECT_EQ(isa.exit_code, 2);
  EXPECT_THAT(isa.err, AllOf(HasSubstr("isa = \"avx1024\""), HasSubstr("scalar")));
  EXPECT_EQ(run_cli("demo", "CADRE_BACKEND=nonesuch").exit_code, 2);
}

TEST(CliInfo, JsonNamesVersionMachineAndBackends) {
  const CliResult result = run_cli("info --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json info = json::parse(result.out);
  EXPECT_EQ(info["version"], CADRE_VERSION_STRING);
  EXPECT_GE(info["cpu"]["logical_cpus"].get<int>(), 1);
  EXPECT_TRUE(info["cuda"]["built"].is_boolean());
  ASSERT_FALSE(info["backends"].empty());
  EXPECT_EQ(info["backends"].back()["name"], "reference");
  for (const json& backend : info["backends"]) EXPECT_FALSE(backend["kernels"].empty());
}

TEST(CliInfo, TextShowsTheEnvironment) {
  const CliResult result = run_cli("info", "CADRE_NUM_THREADS=3");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, AllOf(HasSubstr("Backends"), HasSubstr("CADRE_NUM_THREADS  3")));
}

TEST(CliExplain, PrintsProblemAndChoice) {
  const CliResult result = run_cli(kProblem);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("gmm m=300 k=64 n=96 groups=8 bf16 x bf16 -> bf16 in f32 on cpu"),
                    HasSubstr("Chosen "), HasSubstr("takes it")));
}

TEST(CliExplain, JsonListsEveryKernel) {
  const json info = json::parse(run_cli("info --json").out);
  size_t kernels = 0;
  for (const json& backend : info["backends"]) kernels += backend["kernels"].size();
  const CliResult result = run_cli(std::string(kProblem) + "--json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json document = json::parse(result.out);
  EXPECT_EQ(document["kernels"].size(), kernels);
  EXPECT_EQ(document["problem"]["m"], 300);
  EXPECT_EQ(document["problem"]["average_rows"], 300 / 8);
  EXPECT_TRUE(document["config"]["kernel"].is_string());
}

TEST(CliExplain, EveryOptionReachesTheProblem) {
  const auto text_of = [](const std::string& arguments) {
    const CliResult result = run_cli(arguments + " --json");
    EXPECT_EQ(result.exit_code, 0) << arguments << result.err;
    return json::parse(result.out)["problem"]["text"].get<std::string>();
  };
  EXPECT_THAT(text_of(std::string(kProblem) +
                      "--rhs-dtype f32 --transpose-rhs --list-rhs --bias --row-scale --accumulate "
                      "--alpha 2 --tail untouched --local-groups 4"),
              AllOf(HasSubstr("local=4"), HasSubstr("bf16 x f32 list^T"), HasSubstr("alpha"),
                    HasSubstr("beta * out"), HasSubstr("bias"), HasSubstr("row_scale"),
                    HasSubstr("tail untouched")));
  EXPECT_THAT(text_of("explain --op tgmm --m 300 --k 64 --n 96 --groups 8 --dtype f16 --list-out "
                      "--out-dtype f32"),
              HasSubstr("tgmm m=300 k=64 n=96 groups=8 f16 x f16 -> f32 list"));
  EXPECT_THAT(text_of("explain --op grouped_gemm --m 4000000000 --k 64000 --n 96000 --groups 8 "
                      "--transpose-lhs --dtype f32"),
              HasSubstr("grouped_gemm m=500000000 k=64000 n=96000 groups=8 f32^T x f32 -> f32"));
  EXPECT_THAT(text_of("explain --op bias_grad --m 300 --n 96 --groups 8 --dtype f64"),
              HasSubstr("bias_grad m=300 k=0 n=96"));
}

TEST(CliExplain, RowsByIndexReachTheProblem) {
  const CliResult result = run_cli("explain --m 64 --k 32 --n 48 --groups 2 --lhs-rows 12");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(", 12 rows of lhs by index"));
}

TEST(CliExplain, SaysWhyNobodyTakesIt) {
  const CliResult result = run_cli(std::string(kProblem) + "--device cuda --backend reference");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("Chosen    none"), HasSubstr("takes tensors in host memory alone")));
  const bool built = json::parse(run_cli("info --json").out)["cuda"]["built"].get<bool>();
  EXPECT_EQ(result.out.find("This build has no CUDA backend") == std::string::npos, built);
}

TEST(CliExplain, PinnedKernelIsTheOnlyChoice) {
  const CliResult good = run_cli(std::string(kProblem) + "--kernel reference --json");
  EXPECT_EQ(good.exit_code, 0);
  EXPECT_EQ(json::parse(good.out)["backend"], "reference");
  EXPECT_EQ(run_cli(std::string(kProblem) + "--kernel nonesuch").exit_code, 4);
}

TEST(CliDemo, EveryStepIsCheckedAndPasses) {
  for (const char* dtype : {"bf16", "f32", "f64"}) {
    const CliResult result =
        run_cli(std::string("demo --size tiny --backend reference --json --dtype ") + dtype);
    ASSERT_EQ(result.exit_code, 0) << dtype << result.err;
    const json document = json::parse(result.out);
    EXPECT_TRUE(document["passed"].get<bool>()) << dtype;
    EXPECT_EQ(document["steps"].size(), 8u);
    for (const json& step : document["steps"]) {
      EXPECT_GE(step["elements_checked"].get<int>(), 1024) << step.dump();
      EXPECT_LE(step["error_over_tolerance"].get<double>(), 1.0) << step.dump();
      EXPECT_GT(step["seconds"].get<double>(), 0.0) << step.dump();
      EXPECT_GT(step["plain_loop_seconds"].get<double>(), 0.0) << step.dump();
    }
  }
}

TEST(CliDemo, TextIsATableWithAVerdict) {
  const CliResult result = run_cli("demo --size tiny");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("forward w13"), HasSubstr("GFLOP/s"),
                                HasSubstr("pass 8 results against the reference")));
  EXPECT_THAT(result.out, AllOf(HasSubstr("w13 [384, 128], the gate and the up projection"),
                                HasSubstr("w2 [128, 192], the down projection"),
                                HasSubstr("plain loops on one core take")));
  EXPECT_EQ(result.err, "");  // no progress line where stderr is no terminal
}

TEST(CliDemo, BackendWithoutDeviceIsUnavailable) {
  const json info = json::parse(run_cli("info --json").out);
  if (!info["cuda"]["devices"].empty()) GTEST_SKIP() << "there is a CUDA device here";
  const CliResult result = run_cli("demo --backend cuda");
  const bool built = info["cuda"]["built"].get<bool>();
  EXPECT_EQ(result.exit_code, built ? 4 : 2);
  EXPECT_THAT(result.err, HasSubstr("cuda"));
}

TEST(CliVerify, CountsTheCasesOfOneOp) {
  const CliResult result = run_cli("verify --cases 20 --seed 5 --op tgmm --json");
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  const json document = json::parse(result.out);
  EXPECT_EQ(document["cases"], 20);
  EXPECT_TRUE(document["passed"].get<bool>());
  const CliResult text = run_cli("verify --cases 3 --backend reference");
  EXPECT_EQ(text.out, "pass 3 cases from seed 1, 0 failed\n");
}

TEST(CliVerify, BadBackendIsAUsageError) {
  EXPECT_EQ(run_cli("verify --backend nonesuch").exit_code, 2);
}

}  // namespace
}  // namespace cadre::test
