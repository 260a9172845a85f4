// cadre bench --device cpu: expert layers at 1 to 1024 rows per expert, on one thread and on all,
// beside this machine's own peaks and whatever rivals the build found, all in one run.
#include <fmt/core.h>
#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench/cpu/peak.h"
#include "bench/cpu/quiet.h"
#include "bench/cpu/rivals.h"
#include "bench_cpu_cases.h"
#include "bench_cpu_measure.h"
#include "bench_cpu_summary.h"
#include "cadre/context.h"
#include "core/environment.h"
#include "core/text.h"
#include "cpu/isa.h"
#include "cpu/threads.h"
#include "terminal.h"

namespace cadre::cli {
namespace {

/// The machine's limits for one number of threads.
struct Limits {
  bench::CpuPeak peak;
  double read_gbs;
};

double peak_of(const bench::CpuPeak& peak, DType dtype, bool amx) {
  switch (dtype) {
    case DType::kF64:
      return peak.f64;
    case DType::kI8:
      return peak.int8;
    case DType::kBF16:
    case DType::kE4M3:                    // which are widened to bf16
      return amx ? peak.bf16 : peak.f32;  // without AMX bf16 is held to what f32 could do
    default:
      return peak.f32;
  }
}

nlohmann::json limits_json(const std::map<int, Limits>& limits) {
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [threads, limit] : limits) {
    json.push_back({{"threads", threads},
                    {"f32_gflops", limit.peak.f32},
                    {"f64_gflops", limit.peak.f64},
                    {"bf16_gflops", limit.peak.bf16},
                    {"int8_gflops", limit.peak.int8},
                    {"read_gbs", limit.read_gbs}});
  }
  return json;
}

std::string rivals_line() {
  std::string names;
  for (const auto& rival : bench::make_rivals()) {
    names += text(names.empty() ? "" : ", ", rival->name(), " ", rival->version());
  }
  return names.empty() ? "rivals: none in this build; make bench builds with those that are "
                         "installed (docs/benchmarking.md)"
                       : text("rivals: ", names);
}

/// Where these are set by hand, they are kept.
BenchOptions with_quick_rounds(BenchOptions options) {
  if (!options.quick) return options;
  if (options.repeats == 0) options.repeats = 5;
  if (options.seconds == 0) options.seconds = 0.3;
  return options;
}

/// A quick run begins no case after this.
constexpr double kQuickSeconds = 90;

/// "88%", and why a row is not to be believed.
std::string share_cell(const CpuRow& row) {
  if (row.cpu_share < bench::kQuiet) return fmt::format("{:.0f}% busy", 100 * row.share);
  return fmt::format("{:.0f}%{}", 100 * row.share, row.counts() ? "" : " ?");
}

/// What a case's time is held to.
struct CaseLimit {
  double compute_s, read_s;
  bool by_memory() const { return read_s > compute_s; }
  double seconds() const { return std::max(compute_s, read_s); }
};

nlohmann::json result_row(const CpuCase& work) {
  nlohmann::json row = {{"op", work.op},
                        {"label", work.label},
                        {"dtype", name_of(work.dtype)},
                        {"m", work.m()},
                        {"num_groups", work.num_groups()},
                        {"threads", work.threads}};
  if (work.layer) {
    row["case"] = work.backward ? "layer training step" : "layer forward";
    row["tokens"] = work.layer->tokens;
    row["hidden"] = work.layer->hidden;
    row["intermediate"] = work.layer->intermediate;
  } else {
    row["k"] = work.k;
    row["n"] = work.n;
  }
  if (work.scales != ScaleMode::kNone) row["scales"] = name_of(work.scales);
  return row;
}

std::string rivals_cell(const CpuMeasured& measured) {
  std::string cell;
  for (const auto& [name, value] : measured.rivals.items()) {
    cell +=
        fmt::format("{} {:.3f} ({:.3f}-{:.3f})  ", name, value["times_ours"].get<double>(),
                    value["times_ours_low"].get<double>(), value["times_ours_high"].get<double>());
  }
  return cell;
}

Status run_cpu(const BenchOptions& given, nlohmann::json* results, bool* checks_passed) {
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds_since_begin = [&begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const BenchOptions options = with_quick_rounds(given);
  Context context;
  if (!context.status().ok()) return context.status();
  cpu::Isa isa;
  if (Status status = cpu::resolve_isa(environment::isa(), &isa); !status.ok()) return status;
  int32_t all_threads = 0;
  if (Status status = environment::num_threads(&all_threads); !status.ok()) return status;
  if (all_threads == 0) all_threads = cpu::default_thread_count();

  std::vector<CpuCase> cases;
  if (Status status = make_cpu_cases(options, all_threads, &cases); !status.ok()) return status;
  for (const CpuCase& work : cases) {
    // The rows of a result file say how many threads there were: so many there must be.
    if (const int started = bench::started_threads(work.threads); started != work.threads) {
      return Status::invalid(text(work.threads, " threads wanted, but the system starts ", started,
                                  "; expected a number that its limits (ulimit -u, ulimit -v) "
                                  "allow"));
    }
  }
  fmt::print("{}\n", rivals_line());
  Progress progress;
  std::map<int, Limits> limits;
  for (const CpuCase& work : cases) {
    if (limits.count(work.threads)) continue;
    progress.show(text("measuring the machine, ", work.threads, " thread(s)"));
    limits[work.threads] = {bench::measure_peak(isa, work.threads),
                            bench::measure_read_rate(isa, work.threads, !options.small_pages)};
  }
  progress.clear();
  for (const auto& [threads, limit] : limits) {
    fmt::print(
        "{}, {} thread{}: f32 {:.0f}, bf16 {:.0f}, int8 {:.0f} GFLOP/s at most, reads {:.1f} "
        "GB/s\n",
        cpu::name_of(isa), threads, threads == 1 ? "" : "s", limit.peak.f32, limit.peak.bf16,
        limit.peak.int8, limit.read_gbs);
  }

  if (const double share = bench::cpu_share(all_threads); share < bench::kQuiet) {
    fmt::print(
        "This machine is too busy to measure: of {} thread{} the slowest gets {:.0f} % of a CPU.\n"
        "Rows measured like that are marked and left out of the summary.\n",
        all_threads, all_threads == 1 ? "" : "s", 100 * share);
  }

  std::vector<CpuRow> rows;
  size_t refused = 0, begun = 0;
  LiveTable table({{"op", 6},
                   {"type", 5},
                   {"layer", 24},
                   {"threads", 7, true},
                   {"time", 10, true},
                   {"GFLOP/s", 9, true},
                   {"limit", 9, true},
                   {"share", 9, true},
                   {"check", 5},
                   {"rivals (times ours, interval)", 44}},
                  cases.size());
  *results = nlohmann::json::array();
  for (const CpuCase& work : cases) {
    if (options.quick && begun > 0 && seconds_since_begin() > kQuickSeconds) break;
    ++begun;
    const auto case_begin = bench::Trace::Clock::now();
    const std::string name = work.name();
    std::vector<std::string> cells = {work.op, std::string(name_of(work.dtype)), work.label,
                                      text(work.threads)};
    table.begin(cells, name);
    CpuRow row{.name = name, .threads = work.threads, .cpu_share = bench::cpu_share(work.threads)};
    CpuMeasured measured;
    if (Status status = measure(work, options, &measured); !status.ok()) return status;
    if (options.trace != nullptr) {
      options.trace->add_until_now("cases", text(name, ", threads: ", work.threads), case_begin);
    }
    nlohmann::json result = result_row(work);
    if (!measured.refused.empty()) {
      ++refused;
      result["refused"] = measured.refused;
      results->push_back(std::move(result));
      cells.insert(cells.end(), {"refused", "", "", "", "", measured.refused});
      table.row(cells);
      table.end();
      continue;
    }
    const Limits& limit = limits[work.threads];
    const CaseLimit least = {
        work.operations() / (peak_of(limit.peak, work.dtype, isa >= cpu::Isa::kAmx) * 1e9),
        work.weight_bytes() / (limit.read_gbs * 1e9)};
    const double limit_gflops = work.operations() / least.seconds() / 1e9;
    const double gflops = work.operations() / measured.median_s / 1e9;
    for (const auto& [rival, value] : measured.rivals.items()) {
      row.times_ours[rival] = value["times_ours"].get<double>();
    }
    row.share = gflops / limit_gflops;
    cells.insert(cells.end(),
                 {format_seconds(measured.median_s), fmt::format("{:.1f}", gflops),
                  fmt::format("{:.0f}{}", limit_gflops, least.by_memory() ? " mem" : ""),
                  share_cell(row), verdict(measured.check.passed()), rivals_cell(measured)});
    table.row(cells);
    if (!measured.check.passed()) {
      *checks_passed = false;
      table.line(fmt::format("  wrong: {:.3g} times the tolerance at {}", measured.check.ratio,
                             measured.check.where));
    }
    table.end();
    result.update({{"median_s", measured.median_s},
                   {"rounds", measured.rounds},
                   {"gflops", gflops},
                   {"limit_gflops", limit_gflops},
                   {"limit", least.by_memory() ? "memory" : "compute"},
                   {"share", row.share},
                   {"cpu_share", row.cpu_share},
                   {"read_share", least.read_s / measured.median_s},
                   {"max_error", measured.check.error},
                   {"error_over_tolerance", measured.check.ratio},
                   {"rivals", measured.rivals},
                   {"machine_limits", limits_json({{work.threads, limit}})[0]}});
    if (!measured.kernel.empty()) result["kernel"] = measured.kernel;
    results->push_back(std::move(result));
    rows.push_back(std::move(row));
  }
  fmt::print("{}", summary_of(rows, {.seconds = seconds_since_begin(),
                                     .refused = refused,
                                     .left_out = cases.size() - begun}));
  return {};
}

const BenchRegistration registration{{"cpu", run_cpu}};

}  // namespace
}  // namespace cadre::cli
