// One row of `cadre bench --device cpu`: checked, then timed beside its rivals.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>

#include "bench.h"
#include "bench_cpu_cases.h"
#include "sampled_check.h"

namespace cadre::cli {

struct CpuMeasured {
  std::string kernel{};   ///< the one that was chosen; empty for a layer, which has several
  std::string refused{};  ///< why no fast kernel takes it; then nothing was measured
  double median_s = 0;
  size_t rounds = 0;
  CheckResult check;
  /// By name: median_s, and the median over rounds of its time over ours with an interval of 95 %.
  nlohmann::json rivals = nlohmann::json::object();
};

Status measure(const CpuCase& work, const BenchOptions& options, CpuMeasured* measured);

}  // namespace cadre::cli
