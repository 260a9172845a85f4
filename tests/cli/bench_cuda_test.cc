// cadre bench --device cuda, as far as no GPU is needed: help, errors, and where it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "run_cli.h"

namespace cadre::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CliBenchCuda, HelpNamesTheDeviceItsOpsAndCublas) {
  const CliResult help = run_cli("bench --help");
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, AllOf(HasSubstr("--device cuda"), HasSubstr("portable"), HasSubstr("host"),
                              HasSubstr("CADRE_CUBLAS")));
}

TEST(CliBenchCuda, BadNamesAreUsageErrorsOnEveryMachine) {
  const struct {
    const char* arguments;
    const char* expected;
  } cases[] = {
      {"--op gnn", "--op = gnn, expected one of gmm_nt, gmm, tgmm, options, portable, layer, host"},
      {"--dtype f32", "--dtype = f32, expected bf16, f16 or e4m3 on a GPU"},
      {"--dtype nonesuch", "--dtype = nonesuch, expected bf16"},
      {"--shape nonesuch", "--shape = nonesuch, expected one of train, decode, mixtral-8x7b"},
      {"--dtype bf16,i8", "--dtype = i8, expected bf16, f16 or e4m3 on a GPU"},
      {"--shape nonesuch --op layer", "train, decode, mixtral-8x7b, qwen3-235b, qwen3-30b"},
      {"--op tgmm --shape decode", "--op, --dtype, --shape, --skew and --condition leave no case"},
      {"--op tgmm --dtype e4m3", "e4m3 is measured in gmm_nt"},
      {"--op layer --skew 1", "layers with skew 0"},
      {"--op options --condition rested", "--skew and --condition leave no case"},
      {"--condition cold", "--condition = cold, expected one of sustained, rested, mixed"},
      {"--skew 2", "--skew"},
      {"--repeats 0", "--repeats"}};
  for (const auto& bad : cases) {
    const CliResult result = run_cli(std::string("bench --device cuda ") + bad.arguments);
    EXPECT_EQ(result.exit_code, 2) << bad.arguments;
    EXPECT_THAT(result.err, HasSubstr(bad.expected));
    EXPECT_EQ(result.out, "") << bad.arguments;
  }
}

TEST(CliBenchCuda, ConditionsAndSkewsAreForAGpu) {
  for (const char* option : {"--condition sustained", "--skew 0"}) {
    const CliResult result = run_cli(std::string("bench --device cpu ") + option);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr("--skew or --condition, but --device = cpu, expected cuda"));
  }
}

TEST(CliBenchCuda, APinnedKernelIsForAGpu) {
  const CliResult result = run_cli("bench --device cpu --kernel sm90/gmm_256x128");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("--kernel = sm90/gmm_256x128, but --device = cpu"));
}

TEST(CliBenchCuda, SaysWhatIsMissing) {
  const json cuda = json::parse(run_cli("info --json").out)["cuda"];
  if (!cuda["devices"].empty()) GTEST_SKIP() << "there is a CUDA device here";
  const CliResult result = run_cli("bench --device cuda");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err,
              HasSubstr(cuda["built"].get<bool>()
                            ? "--device = cuda, but there is no GPU here: "
                            : "--device = cuda, but this build has no CUDA backend; configure "
                              "with the preset cuda"));
}

}  // namespace
}  // namespace cadre::test
