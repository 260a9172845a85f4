// The last lines of `cadre bench --device cpu`: means over the table, and whether to believe them.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace cadre::cli {

/// What the summary needs of a row of the table.
struct CpuRow {
  std::string name{};  ///< "gmm bf16 256 rows"
  int threads = 1;
  double share = 0;                            ///< of the machine's limit
  double cpu_share = 1;                        ///< bench::cpu_share before the row was measured
  std::map<std::string, double> times_ours{};  ///< rival -> its time over ours

  /// Nothing else ran, and the limit was not measured too low because something had run before.
  bool counts() const;
};

/// What the whole run was.
struct CpuRun {
  double seconds = 0;
  size_t refused = 0;   ///< cases that no fast kernel takes
  size_t left_out = 0;  ///< for which there was no time
};

/// Lines for people, each with its end.
std::string summary_of(const std::vector<CpuRow>& rows, const CpuRun& run);

}  // namespace cadre::cli
