// The file of `cadre tune`: JSON with a schema of its own. Read here and written here; who replaces
// a file on disk is cli/tune.cc.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/tuning_key.h"

namespace cadre::backend {

/// What a file must say to be read.
inline constexpr int kTuningSchema = 1;
/// Raised by a change after which kernels compare in another way: older measurements are ignored.
inline constexpr int kTuningKernels = 1;

/// One problem on one machine, and what was fastest there.
struct TuningEntry {
  std::string machine{};  ///< plan::Backend::machine()
  TuningKey key{};
  std::string kernel{};
  int32_t threads = 0;  ///< of a CPU call; of a GPU's kernel what it has anyway
  double seconds = 0;
  std::string default_kernel{};  ///< what the library's rules choose, and its time
  double default_seconds = 0;
};

/// Why this build reads no tables; empty where it does. scripts/release.py looks for it in a wheel.
std::string_view no_tables_reason();

struct TuningFile {
  std::string fault{};                 ///< why nothing was read; empty: all is well
  std::vector<TuningEntry> entries{};  ///< for kernels of this version
  size_t outdated = 0;                 ///< entries for others
};

/// Of a text. A single bad entry makes the whole file faulty: whoever wrote it meant something
/// else.
TuningFile parse_tuning(std::string_view text);
/// Of a file: `*exists` false where there is none, which is no fault.
TuningFile read_tuning(const std::string& path, bool* exists);

std::string tuning_text(const std::vector<TuningEntry>& entries);

/// A table in the library itself.
struct ShippedTable {
  std::string_view name;
  std::string_view text;
};
std::span<const ShippedTable> shipped_tables();

}  // namespace cadre::backend
