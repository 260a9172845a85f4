// cadre bench --device cuda: the shapes of bench/shapes at full size, forward, dgrad, wgrad and
// decode, each result checked first and then timed beside a dense cuBLAS product: sustained,
// rested, and mixed with others.
#include <fmt/core.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench.h"
#include "bench/cuda/runner.h"
#include "bench_cuda_report.h"
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

Table make_table() {
  return Table({{"shape", 23},
                {"skew", 4, true},
                {"case", 30},
                {"type", 4},
                {"condition", 9},
                {"of dense", 8, true},
                {"against", 14, true},
                {"time", 9, true},
                {"TFLOP/s", 7, true},
                {"w TB/s", 6, true},
                {"check", 5},
                {"kernel", 20}},
               false);
}

Status run_cuda(const BenchOptions& options, nlohmann::json* results, bool* checks_passed) {
  // What is asked for is looked at first: a wrong name is the same error on every machine.
  const bench::CaseFilter filter = {.ops = options.ops,
                                    .shapes = options.shapes,
                                    .skews = options.skews,
                                    .conditions = options.conditions,
                                    .dtype = options.dtype,
                                    .kernel = options.kernel};
  std::vector<bench::CaseGroup> groups;
  if (Status status = make_case_groups(filter, &groups); !status.ok()) return status;
  if (groups.empty() && !wants_host_cost(filter)) {
    return Status::invalid(
        "--op, --shape, --skew and --condition leave no case (decode shapes have no tgmm and no "
        "options; options and the portable kernels are timed mixed alone)");
  }
  std::unique_ptr<bench::CudaRunner> runner;
  if (Status status = bench::CudaRunner::make(&runner); !status.ok()) return status;

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
  if (groups.empty()) return {};

  Progress progress;
  const Table table = make_table();
  for (size_t i = 0; i < groups.size(); ++i) {
    const bench::CaseGroup& group = groups[i];
    progress.show(text(i + 1, "/", groups.size(), "  ", group.shape.name, " ",
                       bench::op_of(group.pass), ", skew ", group.skew));
    std::vector<bench::Measurement> measurements;
    Status status = runner->measure(group, repeats, &measurements);
    progress.clear();
    if (!status.ok()) return status;
    for (size_t j = 0; j < group.cases.size(); ++j) {
      for (const nlohmann::json& row : result_rows(group, group.cases[j], measurements[j])) {
        table.row(table_cells(row));
        results->push_back(row);
      }
      const bench::Checked& check = measurements[j].check;
      if (!check.passed()) {
        *checks_passed = false;
        fmt::print("  wrong: {} elements not finite; {:.3g} times the tolerance at {}\n",
                   check.not_finite, check.ratio, check.where);
      }
    }
  }
  for (const bench::Condition condition : bench::kConditions) {
    const std::string matrix = ratio_matrix(*results, condition);
    if (!matrix.empty()) fmt::print("\n{}", matrix);
  }
  return {};
}

const BenchRegistration registration{{"cuda", run_cuda}};

}  // namespace
}  // namespace cadre::cli
