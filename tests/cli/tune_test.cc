// cadre tune: what it keeps and where, and that later calls go by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "run_cli.h"

namespace cadre::test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kProduct = "--k 64 --n 48 --groups 3 --rows 5";
constexpr const char* kThreads = "CADRE_NUM_THREADS=2";

/// A folder of its own, removed at the end.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/cadre_tune_XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  size_t files() const {
    const std::filesystem::directory_iterator all(path_);
    return static_cast<size_t>(std::distance(begin(all), end(all)));
  }

 private:
  std::string path_;
};

std::string quoted(const std::string& word) { return "'" + word + "'"; }

TEST(CliTune, WhatIsKeptDecidesLaterCalls) {
  const Folder folder;
  const std::string cache = folder.file("new/folder/tune.json");
  const CliResult result = run_cli(
      std::string("tune ") + kProduct + " --op gmm,gmm_nt --dtype i8 --cache " + quoted(cache),
      kThreads);
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("2 entries for \""), HasSubstr(cache), Not(HasSubstr("\033"))));
  const json document = json::parse(std::ifstream(cache));
  EXPECT_EQ(document["schema"], 1);
  ASSERT_EQ(document["entries"].size(), 2u);
  for (const json& entry : document["entries"]) {
    EXPECT_EQ(entry["k"], 64);
    EXPECT_EQ(entry["n"], 48);
    EXPECT_EQ(entry["num_groups"], 3);
    EXPECT_EQ(entry["rows_up_to"], 8);
    EXPECT_GT(entry["seconds"].get<double>(), 0);
    EXPECT_LE(entry["seconds"].get<double>(), entry["default_seconds"].get<double>());
    EXPECT_THAT(entry["machine"].get<std::string>(), HasSubstr(", 2 threads"));
  }
  // Sizes of m and of groups don't matter.
  const std::string problem = "explain --json --m 18 --k 64 --n 48 --groups 3 --dtype i8";
  const std::string with = std::string(kThreads) + " CADRE_TUNE_CACHE=" + quoted(cache);
  const json explained = json::parse(run_cli(problem, with).out);
  const json& kept = document["entries"][document["entries"][0]["form"].empty() ? 0 : 1];
  EXPECT_EQ(explained["config"]["kernel"], kept["kernel"]);
  EXPECT_EQ(explained["config"]["threads"], kept["threads"]);
  EXPECT_THAT(explained["tuning"].get<std::string>(), HasSubstr("by " + cache));
  const json other = json::parse(run_cli(problem + " --accumulate", with).out);
  EXPECT_THAT(other["tuning"].get<std::string>(), HasSubstr("no entry for \""));
  const json off = json::parse(run_cli(problem, with + " CADRE_TUNE=0").out);
  EXPECT_EQ(off["tuning"], "off");
  const json info = json::parse(run_cli("info --json", with).out);
  EXPECT_EQ(info["tuning"][0]["name"], cache);
  EXPECT_EQ(info["tuning"][0]["status"], "2 entries");
}

TEST(CliTune, ASecondRunReplacesItsOwnEntriesAndKeepsTheOthers) {
  const Folder folder;
  const std::string cache = folder.file("tune.json");
  const std::string to = " --op gmm --dtype i8 --cache " + quoted(cache);
  ASSERT_EQ(run_cli(std::string("tune ") + kProduct + to, kThreads).exit_code, 0);
  ASSERT_EQ(run_cli("tune --k 64 --n 48 --groups 3 --rows 6,300" + to, kThreads).exit_code, 0);
  ASSERT_EQ(run_cli(std::string("tune ") + kProduct + to, "CADRE_NUM_THREADS=1").exit_code, 0);
  const json entries = json::parse(std::ifstream(cache))["entries"];
  ASSERT_EQ(entries.size(), 3u) << entries.dump(1);  // 8 rows, 512 rows, 8 rows on one thread
  EXPECT_EQ(entries[0]["rows_up_to"], 8);
  EXPECT_EQ(entries[1]["rows_up_to"], 512);
  EXPECT_THAT(entries[2]["machine"].get<std::string>(), HasSubstr(", 1 threads"));
  EXPECT_EQ(folder.files(), 1u) << "something else was left behind";
}

TEST(CliTune, AForeignFileIsLeftAsItIs) {
  const Folder folder;
  const std::string cache = folder.file("mine.json");
  std::ofstream(cache) << "{\"mine\": 1}";
  const CliResult result =
      run_cli(std::string("tune ") + kProduct + " --dtype i8 --cache " + quoted(cache), kThreads);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "") << "minutes were measured first";
  EXPECT_THAT(result.err, AllOf(HasSubstr("--cache = \"" + cache + "\": not a file of cadre tune"),
                                HasSubstr("remove it, or name another file")));
  std::string content;
  std::getline(std::ifstream(cache), content);
  EXPECT_EQ(content, "{\"mine\": 1}");
  EXPECT_EQ(folder.files(), 1u);
}

TEST(CliTune, ADryRunKeepsNothing) {
  const Folder folder;
  const CliResult result =
      run_cli(std::string("tune ") + kProduct + " --op gmm --dtype i8 --dry-run --cache " +
                  quoted(folder.file("tune.json")),
              kThreads);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("gmm     i8    own"));
  EXPECT_EQ(folder.files(), 0u);
}

TEST(CliTune, WhatHasOneCandidateIsSaidToHaveOne) {
  const CliResult result = run_cli(
      std::string("tune ") + kProduct + " --op gmm --dtype f32 --dry-run", "CADRE_NUM_THREADS=1");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("one candidate: cpu/"));
}

TEST(CliTune, BadInputIsAUsageErrorThatListsWhatThereIs) {
  const struct {
    const char* arguments;
    const char* expected;
  } cases[] = {
      {"--op gnn", "--op = gnn, expected gmm_nt"},
      {"--dtype f8", "--dtype = f8, expected f64, f32, bf16, f16 or i8"},
      {"--device cuda --dtype f32", "--dtype = f32, expected bf16 or f16 on a GPU"},
      {"--device tpu", "--device"},
      {"--shape nonesuch", "expected one of train, decode, mixtral-8x7b"},
      {"--k 4 --n 4", "--k, --n, --groups and --rows, expected all of them or none"},
      {"--shape decode --k 4 --n 4 --groups 2 --rows 3", "--shape and --k, expected one of them"},
      {"--k 0", "--k"},
      {"--seconds 0", "--seconds"}};
  for (const auto& bad : cases) {
    const CliResult result = run_cli(std::string("tune ") + bad.arguments);
    EXPECT_EQ(result.exit_code, 2) << bad.arguments;
    EXPECT_THAT(result.err, HasSubstr(bad.expected));
    EXPECT_EQ(result.out, "") << bad.arguments;
  }
  const CliResult nowhere =
      run_cli(std::string("tune ") + kProduct, "env -u HOME -u XDG_CACHE_HOME -u CADRE_TUNE_CACHE");
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_THAT(nowhere.err, HasSubstr("--cache is missing"));
}

}  // namespace
}  // namespace cadre::test
