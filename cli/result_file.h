// The file of `cadre bench --json`: what it says about how it was made, and how it takes the place
// of an older one.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "cadre/status.h"

namespace cadre::cli {

/// The document as text: a line for each field, and for each row of its "results".
std::string result_text(const nlohmann::json& document);

/// `option` is the one that names the file, for messages. kInvalid where replace_file would fail.
/// Leaves everything as it is, an older file included.
Status check_replaceable(const std::string& path, std::string_view option = "--json");

/// Writes a file beside `path` and renames it: whoever reads `path` sees the old content or the
/// new, never a part. What is no regular file (a pipe, /dev/null) is written to directly.
Status replace_file(const std::string& path, const std::string& content,
                    std::string_view option = "--json");

/// The variables that are set and change what is measured: CADRE_*, OpenMP's, those of the rivals'
/// libraries and of the CUDA driver.
nlohmann::json measured_environment();

/// "CADRE_ISA=avx2 cadre bench --device cpu --op gmm", quoted for a shell: the environment above,
/// the device, and every option that was given but --json and --trace.
std::string command_to_repeat(const nlohmann::json& environment, const std::string& device,
                              const CLI::App& command);

}  // namespace cadre::cli
