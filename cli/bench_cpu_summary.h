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

/// Lines for people, each with its end. `left_out`: cases for which there was no time.
std::string summary_of(const std::vector<CpuRow>& rows, double seconds, size_t left_out);

}  // namespace cadre::cli
