// What every subcommand shares: exit codes, how a failed Status is reported, how JSON is printed.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "cadre/status.h"

namespace cadre::cli {

/// The exit codes of `cadre`; kExitCodes is the same list for --help.
enum ExitCode : int {
  kOk = 0,
  kCheckFailed = 1,
  kUsage = 2,
  kInternal = 3,
  kUnavailable = 4,
};

inline constexpr std::string_view kExitCodes =
    "Exit codes: 0 ok, 1 a check failed, 2 bad usage or input, 3 internal error,\n"
    "4 not available on this machine or in this build.";

/// Prints "cadre COMMAND: message" to stderr and returns the exit code for the status.
int report(std::string_view command, const Status& status);

/// Prints one JSON document to stdout.
void print_json(const nlohmann::json& document);

/// For CLI11's check(): a whole number in this range, else an error that names the range.
CLI::Validator whole_number(int64_t least, int64_t most);
/// The same of numbers with a fraction; nan and inf are none.
CLI::Validator number(double least, double most);

/// Each adds its subcommand to `app`; running it stores the exit code.
void add_info(CLI::App& app, int* exit_code);
void add_demo(CLI::App& app, int* exit_code);
void add_verify(CLI::App& app, int* exit_code);
void add_explain(CLI::App& app, int* exit_code);
void add_schedule(CLI::App& app, int* exit_code);
void add_bench(CLI::App& app, int* exit_code);
void add_tune(CLI::App& app, int* exit_code);

}  // namespace cadre::cli
