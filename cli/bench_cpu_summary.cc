// Geometric means for each number of threads, over rows that were measured on a quiet machine.
#include "bench_cpu_summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "bench/cpu/quiet.h"

namespace cadre::cli {
namespace {

/// A measured peak is no law of nature: a kernel may pass it by a little.
constexpr double kMostShare = 1.1;

double geometric_mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

std::string line_of(const std::vector<const CpuRow*>& rows) {
  std::vector<double> shares;
  std::map<std::string, std::vector<double>> rivals;
  for (const CpuRow* row : rows) {
    shares.push_back(row->share);
    for (const auto& [name, ratio] : row->times_ours) rivals[name].push_back(ratio);
  }
  const CpuRow& worst = **std::min_element(
      rows.begin(), rows.end(), [](auto* one, auto* other) { return one->share < other->share; });
  const int threads = worst.threads;
  std::string line = fmt::format(
      "  {} thread{}: {:.0f} % of this machine's limit (geometric mean of {} cases; worst {:.0f} "
      "%: "
      "{})",
      threads, threads == 1 ? "" : "s", 100 * geometric_mean(shares), rows.size(),
      100 * worst.share, worst.name);
  for (const auto& [name, ratios] : rivals) {
    line += fmt::format("; {} takes {:.2f} times as long ({} cases)", name, geometric_mean(ratios),
                        ratios.size());
  }
  return line + "\n";
}

}  // namespace

bool CpuRow::counts() const { return cpu_share >= bench::kQuiet && share <= kMostShare; }

std::string summary_of(const std::vector<CpuRow>& rows, const CpuRun& run) {
  std::string lines = fmt::format("\nSummary: {} cases in {:.0f} s\n", rows.size(), run.seconds);
  std::set<int> threads;
  std::vector<const CpuRow*> busy, above;
  for (const CpuRow& row : rows) {
    threads.insert(row.threads);
    if (row.cpu_share < bench::kQuiet) {
      busy.push_back(&row);
    } else if (!row.counts()) {
      above.push_back(&row);
    }
  }
  for (const int count : threads) {
    std::vector<const CpuRow*> counted;
    for (const CpuRow& row : rows) {
      if (row.threads == count && row.counts()) counted.push_back(&row);
    }
    if (!counted.empty()) lines += line_of(counted);
  }
  if (!busy.empty()) {
    const CpuRow& worst = **std::min_element(busy.begin(), busy.end(), [](auto* one, auto* other) {
      return one->cpu_share < other->cpu_share;
    });
    lines += fmt::format(
        "  The machine was too busy in {} of {} cases (marked \"busy\"; a thread got as little as "
        "{:.0f} % of a CPU).\n  They don't count above. Measure again when nothing else runs.\n",
        busy.size(), rows.size(), 100 * worst.cpu_share);
  }
  if (!above.empty()) {
    lines += fmt::format(
        "  {} of {} cases are above 100 % (marked \"?\", up to {:.0f} %): the limit was measured "
        "too "
        "low,\n  because something else ran meanwhile. They don't count above.\n",
        above.size(), rows.size(),
        100 * (*std::max_element(above.begin(), above.end(), [](auto* one, auto* other) {
                return one->share < other->share;
              }))->share);
  }
  if (run.refused > 0) {
    lines += fmt::format(
        "  {} cases were refused: the reference alone computes them here, and it isn't timed.\n",
        run.refused);
  }
  if (run.left_out > 0) {
    lines += fmt::format(
        "  No time was left for {} more cases; without --quick all are measured.\n", run.left_out);
  }
  return lines;
}

}  // namespace cadre::cli
