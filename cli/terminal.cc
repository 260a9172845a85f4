// Tables, the progress line, units.
#include "terminal.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdlib>

namespace cadre::cli {

Table::Table(std::vector<Column> columns, bool quiet)
    : columns_(std::move(columns)), quiet_(quiet) {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  row(titles);
  rule();
}

void Table::row(const std::vector<std::string>& cells) const {
  if (quiet_) return;
  std::string line;
  for (size_t i = 0; i < columns_.size() && i < cells.size(); ++i) {
    const Column& column = columns_[i];
    line += column.right ? fmt::format("{:>{}}  ", cells[i], column.width)
                         : fmt::format("{:<{}}  ", cells[i], column.width);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void Table::rule() const {
  if (quiet_) return;
  int width = -2;
  for (const Column& column : columns_) width += column.width + 2;
  fmt::print("{:-<{}}\n", "", width);
}

Progress::Progress() : terminal_(isatty(STDERR_FILENO) != 0) {}

Progress::~Progress() { clear(); }

void Progress::show(std::string_view text) {
  if (!terminal_) return;
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

std::string verdict(bool passed) {
  const std::string word = passed ? "pass" : "FAIL";
  if (isatty(STDOUT_FILENO) == 0 || std::getenv("NO_COLOR") != nullptr) return word;
  return fmt::format("\033[{}m{}\033[0m", passed ? 32 : 31, word);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string format_flops(double flops_per_second) {
  if (flops_per_second < 1e13) return fmt::format("{:.2f} GFLOP/s", flops_per_second * 1e-9);
  return fmt::format("{:.1f} TFLOP/s", flops_per_second * 1e-12);
}

std::string format_bytes(double bytes) {
  constexpr std::string_view kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

}  // namespace cadre::cli
