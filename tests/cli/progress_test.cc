// The progress line of cadre bench, as a terminal gets it.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>

#include "run_cli.h"

namespace cadre::test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// A terminal that keeps what is written to it.
class Terminal {
 public:
  Terminal() {
    char name[64] = "";
    if (openpty(&reader_, &writer_, name, nullptr, nullptr) == 0) name_ = name;
    fcntl(reader_, F_SETFL, O_NONBLOCK);
  }
  ~Terminal() {
    close(reader_);
    close(writer_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  const std::string& name() const { return name_; }
  std::string written() const {
    std::string text;
    char buffer[4096];
    for (ssize_t count; (count = read(reader_, buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

 private:
  int reader_ = -1, writer_ = -1;
  std::string name_;
};

constexpr const char* kArguments =
    "bench --device cpu --op gmm --dtype i8 --rows 2,3 --threads 1 --seconds 0.01 --repeats 1";
/// Back to the first column, and clear the line.
constexpr const char* kAgain = "\r\033[K";

TEST(CliProgress, OneLineIsRewrittenAndClearedAtTheEnd) {
  const Terminal terminal;
  ASSERT_NE(terminal.name(), "") << "no pseudo-terminal here";
  const CliResult result = run_cli(kArguments, "", terminal.name());
  const std::string text = terminal.written();
  ASSERT_EQ(result.exit_code, 0) << text;
  EXPECT_THAT(text, StartsWith(std::string(kAgain) + "measuring the machine, 1 thread(s)"));
  EXPECT_THAT(text,
              HasSubstr(std::string(kAgain) +
                        "[------------------------] 0/2  --:-- left  gmm i8 2 rows" + kAgain));
  EXPECT_THAT(text, HasSubstr(std::string(kAgain) + "[############------------] 1/2  0:0"));
  EXPECT_THAT(text, EndsWith(std::string(" left  gmm i8 3 rows") + kAgain));
  EXPECT_THAT(text, Not(HasSubstr("\n"))) << "it stays on one line";
  EXPECT_THAT(result.out, Not(HasSubstr("measuring the machine")));
  EXPECT_THAT(result.out, Not(HasSubstr("\033"))) << "a pipe gets plain lines";
}

TEST(CliProgress, WithoutATerminalThereAreTheRowsAlone) {
  const CliResult result = run_cli(kArguments);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, Not(HasSubstr("\033")));
  EXPECT_THAT(result.out, Not(HasSubstr("\r")));
  EXPECT_THAT(result.out, Not(HasSubstr("0/2")));
  EXPECT_THAT(result.out, HasSubstr("gmm     i8     3 rows"));
}

}  // namespace
}  // namespace cadre::test
