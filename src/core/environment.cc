// Reads the CADRE_* environment variables.
#include "core/environment.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

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
  if (error != std::errc{} || stop != end || *count < 1) {
    *count = 0;
    return Status::invalid(
        text("context: CADRE_NUM_THREADS = \"", value, "\", expected a positive number"));
  }
  return {};
}

bool check_every_call() { return value_of("CADRE_CHECK") == "1"; }

}  // namespace cadre::environment
