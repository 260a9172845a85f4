// Reports and checks shared by the subcommands.
#include "command.h"

#include <fmt/core.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/text.h"

namespace cadre::cli {

int report(std::string_view command, const Status& status) {
  if (status.ok()) return kOk;
  fmt::print(stderr, "cadre {}: {}\n", command, status.message());
  switch (status.code()) {
    case StatusCode::kInvalid:
      return kUsage;
    case StatusCode::kUnsupported:
      return kUnavailable;
    default:
      return kInternal;
  }
}

void print_json(const nlohmann::json& document) { fmt::print("{}\n", document.dump(2)); }

namespace {

template <typename Number>
CLI::Validator number_between(const char* kind, Number least, Number most) {
  const auto problem_with = [kind, least, most](const std::string& word) -> std::string {
    Number value = 0;
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    if (error == std::errc{} && stop == end && value >= least && value <= most) return {};
    return text("expected a ", kind, " from ", least, " to ", most, ", got \"", word, "\"");
  };
  return CLI::Validator(problem_with, least > 0 ? "POSITIVE" : "");
}

}  // namespace

CLI::Validator whole_number(int64_t least, int64_t most) {
  return number_between("whole number", least, most);
}

CLI::Validator number(double least, double most) { return number_between("number", least, most); }

}  // namespace cadre::cli
