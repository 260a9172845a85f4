// Tables, the progress line and bar, units.
#include "terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "core/text.h"

namespace cadre::cli {
namespace {

bool is_terminal(int file) { return isatty(file) != 0; }

/// https://no-color.org: set and not empty.
bool colours() {
  const char* no_colour = std::getenv("NO_COLOR");
  return is_terminal(STDOUT_FILENO) && (no_colour == nullptr || *no_colour == '\0');
}

/// Columns that a cell takes: escape sequences take none.
size_t width_of(std::string_view cell) {
  size_t width = 0;
  for (size_t i = 0; i < cell.size(); ++i) {
    if (cell[i] == '\033') {
      i = std::min(cell.find('m', i), cell.size());
    } else {
      ++width;
    }
  }
  return width;
}

}  // namespace

size_t terminal_width(int file) {
  constexpr size_t kUnknown = 80;
  winsize size{};
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUnknown;
}

Table::Table(std::vector<Column> columns, bool quiet)
    : columns_(std::move(columns)), quiet_(quiet) {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  row(titles);
  rule();
}

std::string Table::text_of(const std::vector<std::string>& cells) const {
  std::string line;
  for (size_t i = 0; i < columns_.size() && i < cells.size(); ++i) {
    const Column& column = columns_[i];
    const size_t width = width_of(cells[i]), wanted = static_cast<size_t>(column.width);
    const std::string padding(wanted > width ? wanted - width : 0, ' ');
    line += column.right ? padding + cells[i] + "  " : cells[i] + padding + "  ";
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

void Table::row(const std::vector<std::string>& cells) const {
  if (quiet_) return;
  fmt::print("{}\n", text_of(cells));
  std::fflush(stdout);
}

void Table::rule() const {
  if (quiet_) return;
  int width = -2;
  for (const Column& column : columns_) width += column.width + 2;
  fmt::print("{:-<{}}\n", "", width);
}

Progress::Progress() : terminal_(is_terminal(STDERR_FILENO)) {}

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

Advance::Advance(size_t steps) : steps_(steps), begin_(std::chrono::steady_clock::now()) {}

std::string Advance::line(size_t done, std::string_view what, size_t width) const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
  return line_after(done, passed.count(), what, width);
}

std::string Advance::line_after(size_t done, double seconds, std::string_view what,
                                size_t width) const {
  constexpr size_t kBar = 24;
  const size_t filled = steps_ == 0 ? kBar : std::min(done, steps_) * kBar / steps_;
  std::string left = "--:--";
  if (done > 0) {
    const auto rest = static_cast<double>(steps_ - std::min(done, steps_));
    const auto whole = static_cast<int64_t>(seconds / static_cast<double>(done) * rest + 0.5);
    left = fmt::format("{}:{:02}", whole / 60, whole % 60);
  }
  std::string line =
      fmt::format("[{}{}] {:>{}}/{}  {} left  {}", std::string(filled, '#'),
                  std::string(kBar - filled, '-'), done, text(steps_).size(), steps_, left, what);
  return line.substr(0, width);
}

LiveTable::LiveTable(std::vector<Column> columns, size_t steps)
    : table_(std::move(columns), false), advance_(steps), live_(is_terminal(STDOUT_FILENO)) {}

LiveTable::~LiveTable() { erase(); }

void LiveTable::begin(const std::vector<std::string>& cells, std::string_view what) {
  erase();
  if (!live_) {
    // One column less than there are: some terminals wrap a line that fills them.
    beside_.show(advance_.line(done_, what, terminal_width(STDERR_FILENO) - 1));
    return;
  }
  const size_t width = terminal_width(STDOUT_FILENO) - 1;
  fmt::print("{}\n{}", table_.text_of(cells).substr(0, width), advance_.line(done_, what, width));
  std::fflush(stdout);
  shown_ = true;
}

void LiveTable::row(const std::vector<std::string>& cells) {
  erase();
  table_.row(cells);
}

void LiveTable::line(const std::string& text) {
  erase();
  fmt::print("{}\n", text);
}

void LiveTable::end() {
  erase();
  ++done_;
}

void LiveTable::erase() {
  beside_.clear();
  if (!shown_) return;
  fmt::print("\r\033[1A\033[J");  // to the line above, and clear from there
  std::fflush(stdout);
  shown_ = false;
}

std::string verdict(bool passed) {
  const std::string word = passed ? "pass" : "FAIL";
  if (!colours()) return word;
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
