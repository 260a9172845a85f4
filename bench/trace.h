// What a benchmark ran when, for `cadre bench --trace`.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace cadre::bench {

class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  struct Span {
    std::string track;  ///< what stands in one line of the viewer: "cases", "cadre", "OpenBLAS"
    std::string name;
    double start_s;  ///< since the trace was made
    double seconds;
  };

  void add(std::string track, std::string name, Clock::time_point start, double seconds) {
    spans_.push_back({std::move(track), std::move(name),
                      std::chrono::duration<double>(start - begin_).count(), seconds});
  }
  /// From `start` until now.
  void add_until_now(std::string track, std::string name, Clock::time_point start) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    add(std::move(track), std::move(name), start, seconds);
  }
  const std::vector<Span>& spans() const { return spans_; }

 private:
  Clock::time_point begin_ = Clock::now();
  std::vector<Span> spans_{};
};

}  // namespace cadre::bench
