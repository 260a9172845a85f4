// Result files: replaced as a whole, with the command and the environment that made them.
#include "result_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/text.h"

extern char** environ;

namespace cadre::cli {
namespace {

namespace fs = std::filesystem;

/// A whole name, or the beginning of one where it ends in '_'.
constexpr std::string_view kVariables[] = {"CADRE_",
                                           "OMP_",
                                           "GOMP_",
                                           "KMP_",
                                           "OPENBLAS_",
                                           "DNNL_",
                                           "ONEDNN_",
                                           "CUBLAS_",
                                           "CUDA_CACHE_",
                                           "CUDA_DEVICE_MAX_CONNECTIONS",
                                           "CUDA_FORCE_PTX_JIT",
                                           "CUDA_LAUNCH_BLOCKING",
                                           "CUDA_MODULE_LOADING",
                                           "CUDA_VISIBLE_DEVICES",
                                           "NVIDIA_TF32_OVERRIDE",
                                           "GLIBC_TUNABLES",
                                           "MALLOC_",
                                           "LD_PRELOAD"};

/// The file and the option that names it, for messages.
struct NamedFile {
  const std::string& path;
  std::string_view option;
};

Status not_writable(const NamedFile& file, std::string_view reason) {
  return Status::invalid(
      text(file.option, " = \"", file.path, "\", expected a writable file: ", reason));
}

/// The file itself where `path` is a link to it: the link stays.
fs::path target_of(const std::string& path) {
  std::error_code error;
  fs::path target = fs::canonical(path, error);
  return error ? fs::path(path) : target;
}

bool is_special(const fs::path& target) {
  std::error_code error;
  return fs::exists(target, error) && !fs::is_regular_file(target, error);
}

fs::path temporary_of(const fs::path& target) {
  return text(target.string(), ".partial-", getpid());
}

/// Makes the temporary file with the permissions that the new file is to have.
Status make_temporary(const NamedFile& named, const fs::path& target) {
  const fs::path temporary = temporary_of(target);
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) return not_writable(named, std::strerror(errno));
  close(file);
  std::error_code error;
  const fs::file_status old = fs::status(target, error);
  if (fs::exists(old)) fs::permissions(temporary, old.permissions(), error);
  return {};
}

std::string quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("_./,:=+-", c) != nullptr;
  });
  if (plain) return word;
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

}  // namespace

std::string result_text(const nlohmann::json& document) {
  std::string fields;
  for (const auto& [name, value] : document.items()) {
    std::string shown = value.dump();
    if (name == "results" && value.is_array()) {
      shown.clear();
      for (const nlohmann::json& row : value) {
        shown += text(shown.empty() ? "\n  " : ",\n  ", row.dump());
      }
      shown = text("[", shown, "\n ]");
    }
    fields += text(fields.empty() ? "" : ",", "\n ", nlohmann::json(name).dump(), ": ", shown);
  }
  return text("{", fields, "\n}\n");
}

Status check_replaceable(const std::string& path, std::string_view option) {
  const NamedFile named{path, option};
  const fs::path target = target_of(path);
  std::error_code error;
  if (fs::is_directory(target, error)) return not_writable(named, "it is a folder");
  if (fs::exists(target, error) && access(target.c_str(), W_OK) != 0) {
    return not_writable(named, std::strerror(errno));
  }
  if (is_special(target)) return {};
  Status status = make_temporary(named, target);
  fs::remove(temporary_of(target), error);
  return status;
}

Status replace_file(const std::string& path, const std::string& content, std::string_view option) {
  const NamedFile named{path, option};
  const fs::path target = target_of(path);
  const bool direct = is_special(target);
  const fs::path written = direct ? target : temporary_of(target);
  if (!direct) {
    if (Status status = make_temporary(named, target); !status.ok()) return status;
  }
  std::ofstream file(written);
  file << content;
  file.close();
  std::error_code error;
  if (!file) {
    if (!direct) fs::remove(written, error);
    return not_writable(named, "it could not be written to the end");
  }
  if (direct) return {};
  fs::rename(written, target, error);
  if (error) {
    return not_writable(named, text(error.message(), "; the results are in ", written.string()));
  }
  return {};
}

nlohmann::json measured_environment() {
  nlohmann::json found = nlohmann::json::object();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const size_t end = line.find('=');
    if (end == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, end);
    const bool matters =
        std::any_of(std::begin(kVariables), std::end(kVariables), [&](std::string_view known) {
          return known.back() == '_' ? name.starts_with(known) : name == known;
        });
    if (matters) found[std::string(name)] = std::string(line.substr(end + 1));
  }
  return found;
}

std::string command_to_repeat(const nlohmann::json& environment, const std::string& device,
                              const CLI::App& command) {
  std::string line;
  for (const auto& [name, value] : environment.items()) {
    line += text(name, "=", quoted(value.get<std::string>()), " ");
  }
  line += text("cadre ", command.get_name(), " --device ", quoted(device));
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    const bool no_measuring = name == "--device" || name == "--json" || name == "--trace";
    if (option->count() == 0 || no_measuring) continue;
    if (option->get_expected_max() == 0) {
      line += " " + name;
      continue;
    }
    for (const std::string& value : option->results()) line += text(" ", name, " ", quoted(value));
  }
  return line;
}

}  // namespace cadre::cli
