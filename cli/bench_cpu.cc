// cadre bench --device cpu: expert layers at 1 to 1024 rows per expert, on one thread and on all,
// beside this machine's own peaks and whatever rivals the build found, all in one run.
#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench/cpu/peak.h"
#include "bench/cpu/rivals.h"
#include "bench/shapes/shapes.h"
#include "cadre/gmm.h"
#include "cadre/tgmm.h"
#include "core/environment.h"
#include "core/text.h"
#include "cpu/isa.h"
#include "owned_tensor.h"
#include "sampled_check.h"
#include "terminal.h"

namespace cadre::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// One measurement: an op on one layer.
struct Case {
  std::string label;  ///< "256 rows" or a shape's name
  std::string op;     ///< gmm, gmm_nt (rhs stored [n, k]) or tgmm
  DType dtype;
  std::vector<int64_t> group_sizes;
  int64_t k, n;
  int threads;

  int64_t m() const {
    int64_t sum = 0;
    for (const int64_t rows : group_sizes) sum += rows;
    return sum;
  }
  bool tgmm() const { return op == "tgmm"; }
  /// tgmm adds up in f32, as main_grad does.
  DType out_dtype() const {
    if (tgmm() && dtype != DType::kF64) return DType::kF32;
    return dtype == DType::kI8 ? DType::kI32 : dtype;
  }
  double operations() const {
    return 2.0 * static_cast<double>(m()) * static_cast<double>(k) * static_cast<double>(n);
  }
  /// What must come from memory at least: the weights of experts that have rows (gmm).
  double weight_bytes() const {
    const auto used = std::count_if(group_sizes.begin(), group_sizes.end(),
                                    [](int64_t rows) { return rows > 0; });
    return static_cast<double>(used * k * n) * static_cast<double>(size_of(dtype));
  }
};

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
      return amx ? peak.bf16 : peak.f32;  // without AMX bf16 is held to what f32 could do
    default:
      return peak.f32;
  }
}

struct Measured {
  double median_s = 0;
  CheckResult check;
  nlohmann::json rivals = nlohmann::json::object();
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void fill(OwnedTensor* tensor, uint64_t seed) {
  if (tensor->dtype() != DType::kI8) return tensor->fill_random(seed, 1.0);
  auto* bytes = static_cast<int8_t*>(tensor->view(Side::kHost).data);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (int64_t i = 0; i < tensor->size(); ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    bytes[i] = static_cast<int8_t>(state >> 32);
  }
}

/// Runs everything in turn until there are `repeats` times of each, or a few and the time is up.
std::vector<std::vector<double>> time_in_turn(const std::vector<std::function<void()>>& runs,
                                              int repeats) {
  constexpr double kSeconds = 1.2;
  constexpr size_t kFewest = 5;
  std::vector<std::vector<double>> times(runs.size());
  for (const auto& run : runs) run();  // warm-up
  const Clock::time_point begin = Clock::now();
  const auto elapsed = [](Clock::time_point since) {
    return std::chrono::duration<double>(Clock::now() - since).count();
  };
  while (times[0].size() < static_cast<size_t>(repeats) &&
         (times[0].size() < kFewest || elapsed(begin) < kSeconds)) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const Clock::time_point start = Clock::now();
      runs[i]();
      times[i].push_back(elapsed(start));
    }
  }
  return times;
}

Status measure(const Case& work, int repeats, Measured* measured) {
  const auto groups = static_cast<int64_t>(work.group_sizes.size());
  const bool transpose_rhs = work.op == "gmm_nt";
  OwnedTensor lhs, rhs, out;
  const Device cpu{};
  Status status = lhs.make(work.dtype, {work.m(), work.k}, cpu);
  if (status.ok()) {
    status = work.tgmm()     ? rhs.make(work.dtype, {work.m(), work.n}, cpu)
             : transpose_rhs ? rhs.make(work.dtype, {groups, work.n, work.k}, cpu)
                             : rhs.make(work.dtype, {groups, work.k, work.n}, cpu);
  }
  if (status.ok()) {
    status = work.tgmm() ? out.make(work.out_dtype(), {groups, work.k, work.n}, cpu)
                         : out.make(work.out_dtype(), {work.m(), work.n}, cpu);
  }
  if (!status.ok()) return status;
  fill(&lhs, 1);
  fill(&rhs, 2);
  out.fill_nan();

  Context context({.num_threads = work.threads});
  Context reference({.backend = "reference"});
  const GroupSizes sizes(work.group_sizes.data(), DType::kI64, groups);
  GmmArgs gmm_args{.lhs = lhs.view(Side::kHost),
                   .rhs = rhs.view(Side::kHost),
                   .group_sizes = sizes,
                   .out = out.view(Side::kHost),
                   .transpose_rhs = transpose_rhs};
  TgmmArgs tgmm_args{};
  tgmm_args.lhs = lhs.view(Side::kHost);
  tgmm_args.rhs = rhs.view(Side::kHost);
  tgmm_args.group_sizes = sizes;
  tgmm_args.out = out.view(Side::kHost);

  // The result first, then the time.
  if (work.tgmm()) {
    const TgmmCheck check(tgmm_args);
    if (status = tgmm(context, tgmm_args); !status.ok()) return status;
    if (status = check.check(reference, &measured->check); !status.ok()) return status;
  } else {
    if (status = gmm(context, gmm_args); !status.ok()) return status;
    if (status = check_gmm(reference, gmm_args, &measured->check); !status.ok()) return status;
  }

  std::vector<std::function<void()>> runs;
  runs.emplace_back(
      [&] { status = work.tgmm() ? tgmm(context, tgmm_args) : gmm(context, gmm_args); });
  std::vector<std::string> names;
  auto rivals = bench::make_rivals();
  for (const auto& rival : rivals) {
    const bool takes_it = rival->prepare({.transposed_lhs = work.tgmm(),
                                          .transpose_rhs = transpose_rhs,
                                          .dtype = work.dtype,
                                          .out_dtype = work.out_dtype(),
                                          .group_sizes = work.group_sizes,
                                          .k = work.k,
                                          .n = work.n,
                                          .lhs = gmm_args.lhs.data,
                                          .rhs = rhs.view(Side::kHost).data,
                                          .out = out.view(Side::kHost).data,
                                          .threads = work.threads});
    if (!takes_it) continue;
    names.push_back(rival->name());
    runs.emplace_back([&rival] { rival->run(); });
  }
  const std::vector<std::vector<double>> times = time_in_turn(runs, repeats);
  measured->median_s = median(times[0]);
  for (size_t i = 0; i < names.size(); ++i) {
    measured->rivals[names[i]] = {{"median_s", median(times[i + 1])}};
  }
  return status;
}

/// Rows per expert of the ladder, and enough experts that their weights never fit in a cache.
void add_ladder(const std::string& op, DType dtype, int threads, std::vector<Case>* cases) {
  const shapes::Shape* shape = shapes::find("qwen3-30b-w13");
  for (const int64_t rows : {1, 4, 16, 64, 256, 1024}) {
    const int64_t groups = std::clamp<int64_t>(2048 / rows, 2, 16);
    cases->push_back({.label = text(rows, rows == 1 ? " row" : " rows"),
                      .op = op,
                      .dtype = dtype,
                      .group_sizes = std::vector<int64_t>(static_cast<size_t>(groups), rows),
                      .k = shape->k,
                      .n = shape->n,
                      .threads = threads});
  }
}

/// A named layer, scaled down until one product takes about a tenth of a second at 500 GFLOP/s and
/// its weights half a gigabyte.
void add_shape(const shapes::Shape& full, const std::string& op, DType dtype, int threads,
               double skew, std::vector<Case>* cases) {
  const auto too_large = [dtype](const shapes::Shape& shape) {
    const double weights = static_cast<double>(shape.k) * static_cast<double>(shape.n);
    return 2.0 * weights * static_cast<double>(shape.m()) > 5e10 ||
           weights * static_cast<double>(shape.num_groups) * static_cast<double>(size_of(dtype)) >
               5e8;
  };
  shapes::Shape shape = full;
  for (int64_t divisor = 2; too_large(shape); ++divisor) {
    shape = shapes::scaled_down(full, divisor);
  }
  cases->push_back({.label = text(full.name, skew > 0 ? " skewed" : ""),
                    .op = op,
                    .dtype = dtype,
                    .group_sizes = shapes::router_group_sizes(shape.num_groups, shape.m(), skew, 1),
                    .k = shape.k,
                    .n = shape.n,
                    .threads = threads});
}

Status make_cases(const BenchOptions& options, int all_threads, std::vector<Case>* cases) {
  const auto wanted = [&](const std::string& op) {
    return options.ops.empty() ||
           std::find(options.ops.begin(), options.ops.end(), op) != options.ops.end();
  };
  for (const std::string& op : options.ops) {
    if (op != "gmm" && op != "gmm_nt" && op != "tgmm") {
      return Status::invalid(
          text("--op = ", op, ", expected gmm, gmm_nt (rhs stored [n, k]) or tgmm"));
    }
  }
  std::vector<DType> dtypes = {DType::kF32, DType::kBF16, DType::kI8};
  if (!options.dtype.empty()) {
    dtypes = {dtype_from_name(options.dtype)};
    if (!is_float(dtypes[0]) && dtypes[0] != DType::kI8) {
      return Status::invalid(
          text("--dtype = ", options.dtype, ", expected f64, f32, bf16, f16 or i8"));
    }
  }
  std::vector<int> thread_counts = {1};
  if (all_threads > 1) thread_counts.push_back(all_threads);
  for (const int threads : thread_counts) {
    for (const DType dtype : dtypes) {
      for (const std::string op : {"gmm", "gmm_nt", "tgmm"}) {
        if (!wanted(op) || (op == "tgmm" && dtype == DType::kI8)) continue;
        if (options.shapes.empty()) {
          add_ladder(op, dtype, threads, cases);
          if (threads > 1 && op == "gmm") {
            add_shape(*shapes::find("qwen3-30b-w13"), op, dtype, threads, 1.0, cases);
          }
          continue;
        }
        for (const std::string& name : options.shapes) {
          std::vector<shapes::Shape> found = shapes::tagged(name);
          if (const shapes::Shape* shape = shapes::find(name)) found.push_back(*shape);
          if (found.empty()) {
            std::string known = "train, decode";
            for (const shapes::Shape& shape : shapes::all()) known += text(", ", shape.name);
            return Status::invalid(text("--shape = ", name, ", expected one of ", known));
          }
          for (const shapes::Shape& shape : found) {
            add_shape(shape, op, dtype, threads, 0.0, cases);
            add_shape(shape, op, dtype, threads, 1.0, cases);
          }
        }
      }
    }
  }
  return {};
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

Status run_cpu(const BenchOptions& options, nlohmann::json* results, bool* checks_passed) {
  Context context;
  if (!context.status().ok()) return context.status();
  cpu::Isa isa;
  if (Status status = cpu::resolve_isa(environment::isa(), &isa); !status.ok()) return status;
  int32_t all_threads = 0;
  if (Status status = environment::num_threads(&all_threads); !status.ok()) return status;
  if (all_threads == 0) all_threads = omp_get_max_threads();

  std::vector<Case> cases;
  if (Status status = make_cases(options, all_threads, &cases); !status.ok()) return status;
  Progress progress;
  std::map<int, Limits> limits;
  for (const Case& work : cases) {
    if (limits.count(work.threads)) continue;
    progress.show(text("measuring the machine, ", work.threads, " thread(s)"));
    limits[work.threads] = {bench::measure_peak(isa, work.threads),
                            bench::measure_read_rate(isa, work.threads)};
  }
  progress.clear();
  for (const auto& [threads, limit] : limits) {
    fmt::print(
        "{}, {} thread{}: f32 {:.0f}, bf16 {:.0f}, int8 {:.0f} GFLOP/s at most, reads {:.1f} "
        "GB/s\n",
        cpu::name_of(isa), threads, threads == 1 ? "" : "s", limit.peak.f32, limit.peak.bf16,
        limit.peak.int8, limit.read_gbs);
  }

  const Table table({{"op", 7},
                     {"type", 5},
                     {"layer", 24},
                     {"threads", 7, true},
                     {"time", 10, true},
                     {"GFLOP/s", 9, true},
                     {"limit", 9, true},
                     {"share", 7, true},
                     {"check", 5},
                     {"rivals (times ours)", 36}},
                    false);
  table.rule();
  *results = nlohmann::json::array();
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& work = cases[i];
    progress.show(
        text(i + 1, "/", cases.size(), "  ", work.op, " ", name_of(work.dtype), " ", work.label));
    Measured measured;
    if (Status status = measure(work, options.repeats > 0 ? options.repeats : 40, &measured);
        !status.ok()) {
      return status;
    }
    const Limits& limit = limits[work.threads];
    const double compute_s =
        work.operations() / (peak_of(limit.peak, work.dtype, isa >= cpu::Isa::kAmx) * 1e9);
    const double read_s = work.tgmm() ? 0.0 : work.weight_bytes() / (limit.read_gbs * 1e9);
    const bool by_memory = read_s > compute_s;
    const double limit_gflops = work.operations() / std::max(compute_s, read_s) / 1e9;
    const double gflops = work.operations() / measured.median_s / 1e9;
    std::string rivals;
    for (const auto& [name, value] : measured.rivals.items()) {
      rivals +=
          fmt::format("{} {:.2f}  ", name, value["median_s"].get<double>() / measured.median_s);
    }
    progress.clear();
    table.row({work.op, std::string(name_of(work.dtype)), work.label, text(work.threads),
               format_seconds(measured.median_s), fmt::format("{:.1f}", gflops),
               fmt::format("{:.0f}{}", limit_gflops, by_memory ? " mem" : ""),
               fmt::format("{:.0f}%", 100 * gflops / limit_gflops),
               verdict(measured.check.passed()), rivals});
    if (!measured.check.passed()) *checks_passed = false;
    results->push_back({{"op", work.op},
                        {"label", work.label},
                        {"dtype", name_of(work.dtype)},
                        {"m", work.m()},
                        {"k", work.k},
                        {"n", work.n},
                        {"num_groups", work.group_sizes.size()},
                        {"threads", work.threads},
                        {"median_s", measured.median_s},
                        {"gflops", gflops},
                        {"limit_gflops", limit_gflops},
                        {"limit", by_memory ? "memory" : "compute"},
                        {"share", gflops / limit_gflops},
                        {"max_error", measured.check.error},
                        {"error_over_tolerance", measured.check.ratio},
                        {"rivals", measured.rivals},
                        {"machine_limits", limits_json({{work.threads, limit}})[0]}});
  }
  return {};
}

const BenchRegistration registration{{"cpu", run_cpu}};

}  // namespace
}  // namespace cadre::cli
