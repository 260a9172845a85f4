// Runs the command line tool and returns what it printed and its exit code.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace cadre::test {

struct CliResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// An empty file of its own, removed at the end.
class TemporaryFile {
 public:
  TemporaryFile() {
    const int file = mkstemp(path_);
    if (file >= 0) close(file);
  }
  ~TemporaryFile() { std::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const char* path() const { return path_; }

 private:
  char path_[23] = "/tmp/cadre_test_XXXXXX";
};

/// `arguments` as a shell would split them, with `environment` ("NAME=value ...") in front. stderr
/// goes to the terminal of this name, where there is one, instead of to `err`.
inline CliResult run_cli(const std::string& arguments, const std::string& environment = "",
                         const std::string& terminal = "") {
  const TemporaryFile errors;
  const std::string err_to = terminal.empty() ? errors.path() : terminal;
  const std::string command =
      environment + " '" CADRE_CLI_PATH "' " + arguments + " 2>'" + err_to + "' </dev/null";
  CliResult result;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  for (size_t count; (count = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    result.out.append(buffer, count);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  std::stringstream err;
  err << std::ifstream(errors.path()).rdbuf();
  result.err = err.str();
  return result;
}

}  // namespace cadre::test
