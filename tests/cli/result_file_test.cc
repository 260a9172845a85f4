// The file of cadre bench --json: an older one is whole until a run is complete, and the new one
// says how to repeat it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "result_file.h"
#include "run_cli.h"
#include "tests/support/scoped_environment.h"

namespace cadre::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kOld[] = "{\"kept\": true}\n";
/// A folder of its own, removed at the end.
class ResultFile : public testing::Test {
 protected:
  ResultFile() {
    char folder[] = "/tmp/cadre_result_file_XXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~ResultFile() override { fs::remove_all(folder_); }

  std::string path() const { return (folder_ / "old.json").string(); }
  void write_old() const { std::ofstream(path()) << kOld; }
  static std::string content(const fs::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  fs::path folder_;
};

TEST(ResultText, IsTheSameDocumentWithALineForEachRow) {
  const json rows = {{{"case", "a \"quoted\" one"}, {"median_s", 0.125}}, {{"nested", {{"n", 1}}}}};
  const json document = {{"schema", 2}, {"machine", {{"model", "x"}}}, {"results", rows}};
  const std::string text = cli::result_text(document);
  EXPECT_EQ(json::parse(text), document);
  EXPECT_EQ(text,
            "{\n \"machine\": {\"model\":\"x\"},\n \"results\": [\n"
            "  {\"case\":\"a \\\"quoted\\\" one\",\"median_s\":0.125},\n"
            "  {\"nested\":{\"n\":1}}\n ],\n \"schema\": 2\n}\n");
  EXPECT_EQ(json::parse(cli::result_text({{"results", json::array()}}))["results"], json::array());
}

TEST_F(ResultFile, IsKeptByARunThatFails) {
  const struct {
    const char* arguments;
    const char* environment;
  } runs[] = {{"bench --device cpu --op nonesuch", ""},
              {"bench --device cpu --shape nonesuch", ""},
              {"bench --device cpu --dtype nonesuch", ""},
              {"bench --device cpu --repeats 0", ""},
              {"bench --device cpu", "CADRE_ISA=foo"},
              {"bench --device cpu", "CADRE_NUM_THREADS=foo"},
              {"bench --device cpu", "CADRE_BACKEND=foo"},
              {"bench --device cuda --op nonesuch", ""},
              {"bench --device cuda", "CUDA_VISIBLE_DEVICES="}};
  for (const auto& run : runs) {
    write_old();
    const CliResult result =
        run_cli(std::string(run.arguments) + " --json " + path(), run.environment);
    EXPECT_NE(result.exit_code, 0) << run.arguments;
    EXPECT_EQ(content(path()), kOld) << run.environment << run.arguments;
    EXPECT_EQ(files().size(), 1u) << run.environment << run.arguments;
  }
}

TEST_F(ResultFile, IsKeptByARunThatIsKilled) {
  write_old();
  const CliResult result =
      run_cli("bench --device cpu --json " + path(), "timeout --signal=KILL 0.5");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(content(path()), kOld);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(ResultFile, IsReplacedAsAWholeAndKeepsItsPermissions) {
  write_old();
  fs::permissions(path(), fs::perms::owner_read | fs::perms::owner_write);
  const std::string link = (folder_ / "link.json").string();
  fs::create_symlink("old.json", link);
  EXPECT_TRUE(cli::check_replaceable(link).ok());
  EXPECT_EQ(content(path()), kOld);
  EXPECT_TRUE(cli::replace_file(link, "new").ok());
  EXPECT_EQ(content(path()), "new");
  EXPECT_EQ(fs::status(path()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(ResultFile, MayBeADevice) {
  EXPECT_TRUE(cli::check_replaceable("/dev/null").ok());
  EXPECT_TRUE(cli::replace_file("/dev/null", "new").ok());
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_F(ResultFile, ThatCannotBeWrittenIsAnErrorBeforeAnythingIsMeasured) {
  const std::string nowhere = (folder_ / "no such folder" / "x.json").string();
  const struct {
    std::string path;
    const char* reason;
  } bad[] = {{nowhere, "No such file or directory"},
             {folder_.string(), "it is a folder"},
             {"/proc/version", ""}};  // nobody's to write, not even root's
  for (const auto& row : bad) {
    const CliResult result = run_cli("bench --device cpu --json '" + row.path + "'");
    EXPECT_EQ(result.exit_code, 2) << row.path;
    EXPECT_THAT(result.err, AllOf(HasSubstr("--json = \"" + row.path + "\", expected a writable"),
                                  HasSubstr(row.reason)));
    EXPECT_EQ(result.out, "") << row.path;
  }
  EXPECT_TRUE(files().empty());
  const CliResult unnamed = run_cli("bench --device cpu --json ''");
  EXPECT_EQ(unnamed.exit_code, 2);
  EXPECT_THAT(unnamed.err, HasSubstr("--json: expected the name of a file"));
}

TEST_F(ResultFile, HoldsOnlyVariablesThatMatterQuotedForAShell) {
  const tests::ScopedEnvironment isa("CADRE_ISA", "scalar");
  const tests::ScopedEnvironment omp("OMP_PLACES", "{0} it's");
  const tests::ScopedEnvironment other("UNRELATED", "1");
  const json environment = cli::measured_environment();
  EXPECT_EQ(environment["CADRE_ISA"], "scalar");
  EXPECT_EQ(environment["OMP_PLACES"], "{0} it's");
  EXPECT_FALSE(environment.contains("UNRELATED"));
  EXPECT_FALSE(environment.contains("PATH"));

  CLI::App app;
  CLI::App* bench = app.add_subcommand("bench");
  std::vector<std::string> ops, shapes;
  std::string path, device;
  bench->add_option("--device", device);
  bench->add_option("--op", ops)->delimiter(',');
  bench->add_option("--shape", shapes);
  bench->add_flag("--brief");
  bench->add_option("--json", path);
  app.parse("bench --json /tmp/x --device cpu --brief --op gmm,tgmm");
  EXPECT_EQ(cli::command_to_repeat({{"A_", "x"}, {"B_", "{0} it's"}}, "cpu", *bench),
            "A_=x B_='{0} it'\\''s' cadre bench --device cpu --op gmm --op tgmm --brief");
}

}  // namespace
}  // namespace cadre::test
