// What a terminal shows: tables whose rows appear one by one, a progress line, and how far a long
// run is. Where a stream is no terminal it gets plain lines.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cadre::cli {

struct Column {
  std::string title;
  int width;
  bool right = false;  ///< numbers are aligned to the right
};

/// Prints to stdout, a row as soon as it is there. A quiet table prints nothing.
class Table {
 public:
  Table(std::vector<Column> columns, bool quiet);
  void row(const std::vector<std::string>& cells) const;
  void rule() const;
  /// The cells of a row in their columns, without an end.
  std::string text_of(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
  bool quiet_;
};

/// One line on stderr that is rewritten in place; nothing where stderr is no terminal.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::string_view text);
  void clear();

 private:
  bool terminal_;
  bool shown_ = false;
};

/// How far a run of `steps` is, with the time left by the steps that are done:
/// "[#####---------]  3/9  1:24 left  gmm bf16 64 rows".
class Advance {
 public:
  explicit Advance(size_t steps);
  /// While step `done` + 1 runs, in at most `width` columns.
  std::string line(size_t done, std::string_view what, size_t width) const;
  std::string line_after(size_t done, double seconds, std::string_view what, size_t width) const;

 private:
  size_t steps_;
  std::chrono::steady_clock::time_point begin_;
};

/// The table of a long run. On a terminal the row that is being measured and the bar stand below
/// it. Piped, there are the finished rows alone; the bar then goes to stderr if that is a terminal.
class LiveTable {
 public:
  LiveTable(std::vector<Column> columns, size_t steps);
  ~LiveTable();
  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  /// The next step begins: the first cells of its row, and what it is called.
  void begin(const std::vector<std::string>& cells, std::string_view what);
  /// A row of it, or a line below its rows.
  void row(const std::vector<std::string>& cells);
  void line(const std::string& text);
  /// It is done.
  void end();

 private:
  void erase();

  Table table_;
  Advance advance_;
  Progress beside_;  ///< where stdout is no terminal
  bool live_;
  size_t done_ = 0;
  bool shown_ = false;
};

/// Columns of the terminal behind a file descriptor; 80 where that is unknown.
size_t terminal_width(int file);

/// "pass" or "FAIL", coloured where stdout is a terminal and NO_COLOR isn't set.
std::string verdict(bool passed);

/// "1.50 ms", "820 us", "2.10 s"
std::string format_seconds(double seconds);

/// "127.26 GFLOP/s", "554.8 TFLOP/s"
std::string format_flops(double flops_per_second);

/// "32.0 KiB", "1.5 MiB"
std::string format_bytes(double bytes);

}  // namespace cadre::cli
