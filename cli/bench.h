// The frame of `cadre bench`: a file for each device (bench_cpu.cc, bench_cuda.cc) registers
// itself.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/trace.h"
#include "cadre/status.h"

namespace cadre::cli {

struct BenchOptions {
  std::string device = "cpu";
  std::vector<std::string> ops;     ///< gmm, tgmm, layer, ...; empty: all
  std::vector<std::string> shapes;  ///< names or tags of bench/shapes; empty: the device's default
  std::vector<std::string> dtypes;  ///< empty: the device's default
  int repeats = 0;                  ///< 0: the device's default
  std::vector<int64_t> rows;        ///< cpu: rows per expert of the ladder; empty: 1 to 1024
  std::vector<int> threads;         ///< cpu: numbers of threads; empty: 1 and all
  double seconds = 0;               ///< cpu: for the timed rounds of a case; 0: the default
  bool quick = false;               ///< cpu: a choice of cases, within about two minutes
  bool small_pages = false;         ///< cpu: do not ask for huge pages for the operands
  std::string kernel;               ///< pinned, on a GPU; empty: what the library chooses
  std::vector<int> skews;           ///< cuda: 0, 1; empty: both
  std::vector<std::string> conditions;  ///< cuda: sustained, rested, mixed; empty: all
  bench::Trace* trace = nullptr;        ///< null: nobody asks what ran when
};

/// Measures, prints its table to stdout as it goes, and fills `results`, which the frame writes to
/// the file of --json beside the command line and the machine. A result that doesn't pass its
/// check returns ok with *checks_passed = false. A case that no fast kernel takes is a row with
/// "refused", the reason, and no time.
struct BenchDevice {
  std::string name;
  Status (*run)(const BenchOptions& options, nlohmann::json* results, bool* checks_passed);
};

/// The implementations in this build, by name.
std::vector<BenchDevice>& bench_devices();

/// `static const BenchRegistration registration{{"cpu", run_cpu}};` in bench_<device>.cc
struct BenchRegistration {
  explicit BenchRegistration(BenchDevice device) { bench_devices().push_back(std::move(device)); }
};

}  // namespace cadre::cli
