// Runs the command line tool and returns what it printed and its exit code.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace cadre::test {

struct CliResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// `arguments` as a shell would split them, with `environment` ("NAME=value ...") in front.
inline CliResult run_cli(const std::string& arguments, const std::string& environment = "") {
  char path[] = "/tmp/cadre_cli_test_XXXXXX";
  const int file = mkstemp(path);
  if (file >= 0) close(file);
  const std::string command =
      environment + " '" CADRE_CLI_PATH "' " + arguments + " 2>'" + path + "' </dev/null";
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
  err << std::ifstream(path).rdbuf();
  result.err = err.str();
  std::remove(path);
  return result;
}

}  // namespace cadre::test
