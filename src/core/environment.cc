// Reads the CADRE_* environment variables.
#include "core/environment.h"

#include <charconv>
#include <cstdlib>

#include "core/text.h"

namespace cadre::environment {
namespace {

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

std::string isa() { return value_of("CADRE_ISA"); }

std::string backend() { return value_of("CADRE_BACKEND"); }

Status num_threads(int32_t* count) {
  const std::string value = value_of("CADRE_NUM_THREADS");
  *count = 0;
  if (value.empty()) return {};
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, *count);
  if (error != std::errc{} || stop != end || *count < 1 || *count > kMaxThreads) {
    *count = 0;
    return Status::invalid(text("context: CADRE_NUM_THREADS = \"", value,
                                "\", expected a whole number from 1 to ", kMaxThreads));
  }
  return {};
}

Status check_every_call(bool* check) {
  const std::string value = value_of("CADRE_CHECK");
  *check = value == "1";
  if (value.empty() || value == "0" || value == "1") return {};
  return Status::invalid(text("context: CADRE_CHECK = \"", value, "\", expected 0 or 1"));
}

}  // namespace cadre::environment
