// What a terminal shows: tables whose rows appear one by one, and a progress line.
#pragma once

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

/// "pass" or "FAIL", coloured where stdout is a terminal.
std::string verdict(bool passed);

/// "1.50 ms", "820 us", "2.10 s"
std::string format_seconds(double seconds);

/// "127.26 GFLOP/s", "554.8 TFLOP/s"
std::string format_flops(double flops_per_second);

/// "32.0 KiB", "1.5 MiB"
std::string format_bytes(double bytes);

}  // namespace cadre::cli
