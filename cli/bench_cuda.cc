// cadre bench --device cuda: the shapes of bench/shapes at full size, forward, dgrad, wgrad and
// decode, each result checked first and then timed beside a dense cuBLAS product: sustained,
// rested, and mixed with others.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench/cuda/runner.h"
#include "bench_cuda_report.h"
#include "bench_cuda_whole.h"
#include "core/text.h"
#include "terminal.h"

namespace cadre::cli {
namespace {

constexpr int kRepeats = 15;

void report_host_cost(const std::vector<bench::HostCost>& costs, nlohmann::json* results) {
  for (const bench::HostCost& cost : costs) {
    fmt::print("{} costs the host {} a call ({} at least)\n", cost.op,
               format_seconds(cost.times.median_s), format_seconds(cost.times.least_s));
    results->push_back(host_cost_row(cost));
  }
}

std::vector<Column> columns() {
  return {{"shape", 23},        {"skew", 4, true},     {"case", 30},          {"type", 4},
          {"condition", 9},     {"of dense", 8, true}, {"against", 14, true}, {"time", 9, true},
          {"TFLOP/s", 7, true}, {"w TB/s", 6, true},   {"check", 5},          {"kernel", 20}};
}

/// Everything that is asked for.
struct Work {
  std::vector<bench::CaseGroup> groups{};
  std::vector<bench::ScaledCase> scaled{};
  std::vector<bench::LayerCase> layers{};

  size_t steps() const { return groups.size() + scaled.size() + layers.size(); }
};

Status find_work(const bench::CaseFilter& filter, Work* work) {
  Status status = make_case_groups(filter, &work->groups);
  if (status.ok()) status = make_scaled_cases(filter, &work->scaled);
  if (status.ok()) status = make_layer_cases(filter, &work->layers);
  if (!status.ok() || work->steps() > 0 || wants_host_cost(filter)) return status;
  return Status::invalid(
      "--op, --dtype, --shape, --skew and --condition leave no case (decode shapes have no tgmm "
      "and no options; options and the portable kernels are timed mixed alone; e4m3 is measured in "
      "gmm_nt, layers with skew 0)");
}

/// Puts rows of the result file into the table.
class Report {
 public:
  Report(LiveTable* table, nlohmann::json* results, bool* checks_passed, bench::Trace* trace)
      : table_(table), results_(results), checks_passed_(checks_passed), trace_(trace) {}

  void begin(std::string_view shape, double skew, std::string_view what) {
    table_->begin({std::string(shape), fmt::format("{:.0f}", skew), std::string(what)},
                  step_ = text(shape, " ", what, ", skew ", skew));
    begin_ = bench::Trace::Clock::now();
  }
  void add(const nlohmann::json& rows) {
    for (const nlohmann::json& row : rows) {
      table_->row(table_cells(row));
      results_->push_back(row);
      *checks_passed_ &= row.contains("refused") || row["checked"].get<bool>();
    }
  }
  void wrong(const bench::Checked& check) {
    table_->line(fmt::format("  wrong: {} elements not finite; {:.3g} times the tolerance at {}",
                             check.not_finite, check.ratio, check.where));
  }
  void end() {
    table_->end();
    if (trace_ != nullptr) trace_->add_until_now("cases", step_, begin_);
  }

 private:
  LiveTable* table_;
  nlohmann::json* results_;
  bool* checks_passed_;
  bench::Trace* trace_;
  std::string step_{};
  bench::Trace::Clock::time_point begin_{};
};

Status measure_all(bench::CudaRunner& runner, const Work& work, int repeats, Report* report) {
  for (const bench::CaseGroup& group : work.groups) {
    report->begin(group.shape.name, group.skew, bench::op_of(group.pass));
    std::vector<bench::Measurement> measurements;
    if (Status status = runner.measure(group, repeats, &measurements); !status.ok()) return status;
    for (size_t i = 0; i < group.cases.size(); ++i) {
      report->add(result_rows(group, group.cases[i], measurements[i]));
      if (!measurements[i].check.passed()) report->wrong(measurements[i].check);
    }
    report->end();
  }
  for (const bench::ScaledCase& scaled : work.scaled) {
    report->begin(scaled.shape.name, scaled.skew, text("e4m3 ", name_of(scaled.scales)));
    nlohmann::json rows = nlohmann::json::array();
    if (Status status = measure_scaled(runner, scaled, repeats, &rows); !status.ok()) return status;
    report->add(rows);
    report->end();
  }
  for (const bench::LayerCase& layer : work.layers) {
    report->begin(layer.shape.name, 0, layer.backward ? "layer training step" : "layer forward");
    nlohmann::json rows = nlohmann::json::array();
    if (Status status = measure_layer(runner, layer, repeats, &rows); !status.ok()) return status;
    report->add(rows);
    report->end();
  }
  return {};
}

Status run_cuda(const BenchOptions& options, nlohmann::json* results, bool* checks_passed) {
  // What is asked for is looked at first: a wrong name is the same error on every machine.
  const bench::CaseFilter filter = {.ops = options.ops,
                                    .shapes = options.shapes,
                                    .skews = options.skews,
                                    .conditions = options.conditions,
                                    .dtypes = options.dtypes,
                                    .kernel = options.kernel};
  Work work;
  if (Status status = find_work(filter, &work); !status.ok()) return status;
  std::unique_ptr<bench::CudaRunner> runner;
  if (Status status = bench::CudaRunner::make(&runner); !status.ok()) return status;

  runner->trace_to(options.trace);
  const int repeats = options.repeats > 0 ? options.repeats : kRepeats;
  const CudaRun run = {.dense_library = runner->dense_library(),
                       .driver_version = runner->driver_version(),
                       .copy_rate = runner->copy_rate()};
  *results = nlohmann::json::array({machine_row(run)});
  fmt::print("a copy reads and writes {:.2f} TB/s; dense products: {}\n", run.copy_rate * 1e-12,
             run.dense_library);
  if (!runner->has_dense()) fmt::print("shares of dense are missing from this run\n");
  if (wants_host_cost(filter)) {
    std::vector<bench::HostCost> costs;
    if (Status status = runner->measure_host_cost(&costs); !status.ok()) return status;
    report_host_cost(costs, results);
  }
  if (work.steps() == 0) return {};

  LiveTable table(columns(), work.steps());
  Report report(&table, results, checks_passed, options.trace);
  if (Status status = measure_all(*runner, work, repeats, &report); !status.ok()) return status;
  for (const bench::Condition condition : bench::kConditions) {
    const std::string matrix = ratio_matrix(*results, condition);
    if (!matrix.empty()) fmt::print("\n{}", matrix);
  }
  return {};
}

const BenchRegistration registration{{"cuda", run_cuda}};

}  // namespace
}  // namespace cadre::cli
