// Reports shared by the subcommands.
#include "command.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

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

}  // namespace cadre::cli
