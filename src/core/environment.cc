// Reads the environment variables.
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

int32_t omp_num_threads() {
  std::string value = value_of("OMP_NUM_THREADS");
  value = value.substr(0, value.find(','));
  int32_t count = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, count);
  const bool number = error == std::errc{} && stop == end && count >= 1 && count <= kMaxThreads;
  return number ? count : 0;
}

Status check_every_call(bool* check) {
  const std::string value = value_of("CADRE_CHECK");
  *check = value == "1";
  if (value.empty() || value == "0" || value == "1") return {};
  return Status::invalid(text("context: CADRE_CHECK = \"", value, "\", expected 0 or 1"));
}

std::string tune_cache() {
  std::string file = value_of("CADRE_TUNE_CACHE");
  if (!file.empty()) return file;
  // https://specifications.freedesktop.org/basedir-spec: a relative path is to be ignored.
  if (std::string folder = value_of("XDG_CACHE_HOME"); folder.starts_with('/')) {
    return folder + "/cadre/tune.json";
  }
  const std::string home = value_of("HOME");
  return home.empty() ? "" : home + "/.cache/cadre/tune.json";
}

Status tuned(bool* tuned) {
  const std::string value = value_of("CADRE_TUNE");
  *tuned = value != "0";
  if (value.empty() || value == "0" || value == "1") return {};
  return Status::invalid(text("context: CADRE_TUNE = \"", value, "\", expected 0 or 1"));
}

}  // namespace cadre::environment
