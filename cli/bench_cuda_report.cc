// Rows and tables of `cadre bench --device cuda`.
#include "bench_cuda_report.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/text.h"
#include "terminal.h"

namespace cadre::cli {
namespace {

using nlohmann::json;

std::string ratio_cell(const json& row, const char* field) {
  return row.contains(field) ? fmt::format("{:.3f}", row[field].get<double>()) : "";
}

json result_row(const bench::CaseGroup& group, const bench::Case& measured_case,
                const bench::Measurement& measured, const bench::Timing& timing) {
  const shapes::Shape& shape = group.shape;
  const double median_s = timing.times.median_s;
  const bool flushed = timing.condition != bench::Condition::kSustained;
  const double operations = 2.0 * static_cast<double>(shape.m()) * static_cast<double>(shape.k) *
                            static_cast<double>(shape.n);
  json row = {{"op", bench::op_of(group.pass)},
              {"case", measured_case.name},
              {"shape", shape.name},
              {"skew", group.skew},
              {"dtype", name_of(measured_case.dtype)},
              {"out_dtype", name_of(measured_case.out_dtype())},
              {"m", shape.m()},
              {"k", shape.k},
              {"n", shape.n},
              {"num_groups", shape.num_groups},
              {"kernel", measured.kernel},
              {"condition", name_of(timing.condition)},
              {"flush", !flushed                             ? "none"
                        : group.flush == bench::Flush::kRead ? "read"
                                                             : "write"},
              {"repeats", timing.calls},
              {"median_s", median_s},
              {"least_s", timing.times.least_s},
              {"greatest_s", timing.times.greatest_s},
              {"gflops", operations / median_s * 1e-9},
              {"max_error", measured.check.max_error},
              {"error_over_tolerance", measured.check.ratio},
              {"elements_checked", measured.check.elements},
              {"checked", measured.check.passed()}};
  if (timing.dense) {
    row["of_dense"] = timing.dense->median_s / median_s;
    row["dense_median_s"] = timing.dense->median_s;
    row["dense_gflops"] = operations / timing.dense->median_s * 1e-9;
  }
  if (timing.baseline && measured_case.baseline != bench::Baseline::kNone) {
    const bool bf16 = measured_case.baseline == bench::Baseline::kBf16;
    row[bf16 ? "of_bf16" : "of_plain"] = timing.baseline->median_s / median_s;
    if (timing.dense && timing.baseline_dense) {
      const double share = timing.baseline_dense->median_s / timing.baseline->median_s;
      row["of_bf16_share"] = row["of_dense"].get<double>() / share;
    }
  }
  if (group.pass != bench::Pass::kWgrad) {
    const double weights = measured.used_groups * static_cast<double>(shape.k) *
                           static_cast<double>(shape.n) *
                           static_cast<double>(size_of(measured_case.dtype));
    row["weights_tb_per_s"] = weights / median_s * 1e-12;
  }
  return row;
}

}  // namespace

json result_rows(const bench::CaseGroup& group, const bench::Case& measured_case,
                 const bench::Measurement& measured) {
  json rows = json::array();
  for (const bench::Timing& timing : measured.timings) {
    rows.push_back(result_row(group, measured_case, measured, timing));
  }
  return rows;
}

json machine_row(const CudaRun& run) {
  return {{"case", "machine"},
          {"copy_tb_per_s", run.copy_rate * 1e-12},
          {"dense_library", run.dense_library},
          {"driver_version", run.driver_version}};
}

json host_cost_row(const bench::HostCost& cost) {
  return {{"op", cost.op},
          {"case", "host cost"},
          {"dtype", "bf16"},
          {"host_seconds_per_call", cost.times.median_s},
          {"least_s", cost.times.least_s},
          {"greatest_s", cost.times.greatest_s}};
}

std::vector<std::string> table_cells(const json& row) {
  if (row.contains("refused")) {
    return {row["shape"].get<std::string>(),
            fmt::format("{:.0f}", row["skew"].get<double>()),
            row["case"].get<std::string>(),
            row["dtype"].get<std::string>(),
            "refused",
            "",
            "",
            "",
            "",
            "",
            "",
            row["refused"].get<std::string>()};
  }
  const bool bf16_ratio = row.contains("of_bf16");
  const char* baseline = bf16_ratio ? "of_bf16" : "of_plain";
  std::string other = ratio_cell(row, baseline);
  if (!other.empty()) other += bf16_ratio ? " of bf16" : " of plain";
  return {row["shape"].get<std::string>(),
          fmt::format("{:.0f}", row["skew"].get<double>()),
          row["case"].get<std::string>() + (row["flush"] == "read" ? ", clean L2" : ""),
          row["dtype"].get<std::string>(),
          row["condition"].get<std::string>(),
          ratio_cell(row, "of_dense"),
          other,
          format_seconds(row["median_s"].get<double>()),
          fmt::format("{:.1f}", row["gflops"].get<double>() * 1e-3),
          row.contains("weights_tb_per_s")
              ? fmt::format("{:.2f}", row["weights_tb_per_s"].get<double>())
              : "",
          verdict(row["checked"].get<bool>()),
          row["kernel"].get<std::string>()};
}

std::string ratio_matrix(const json& rows, bench::Condition condition) {
  const std::vector<std::string> columns = {"forward", "dgrad", "wgrad", "wgrad f32 accumulate"};
  std::vector<std::string> shapes_in_order;
  std::map<std::string, std::map<std::string, std::map<double, double>>> ratios;
  for (const json& row : rows) {
    if (!row.contains("of_dense") || row["dtype"] != "bf16") continue;
    if (row["condition"] != name_of(condition)) continue;
    const auto name = row["case"].get<std::string>();
    if (std::find(columns.begin(), columns.end(), name) == columns.end()) continue;
    const auto shape = row["shape"].get<std::string>();
    if (ratios.count(shape) == 0) shapes_in_order.push_back(shape);
    ratios[shape][name][row["skew"].get<double>()] = row["of_dense"].get<double>();
  }
  if (ratios.empty()) return {};
  std::string matrix =
      fmt::format("share of dense, {}, bf16, skew 0 / skew 1\n{:<20}", name_of(condition), "");
  for (const std::string& column : columns) matrix += fmt::format("  {:>20}", column);
  matrix += "\n";
  for (const std::string& shape : shapes_in_order) {
    matrix += fmt::format("{:<20}", shape);
    for (const std::string& column : columns) {
      std::string cell;
      for (const auto& [skew, ratio] : ratios[shape][column]) {
        cell += fmt::format("{}{:.3f}", cell.empty() ? "" : " / ", ratio);
      }
      matrix += fmt::format("  {:>20}", cell);
    }
    matrix += "\n";
  }
  return matrix;
}

}  // namespace cadre::cli
