// What `cadre bench --device cuda` makes of a measurement: a row of the result file, a row of the
// table, and the ratios of a whole run. Nothing here needs a GPU.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cuda/cases.h"
#include "bench/cuda/measurement.h"

namespace cadre::cli {

/// What holds for the whole run.
struct CudaRun {
  std::string dense_library{};
  int driver_version = 0;
  double copy_rate = 0;  ///< bytes a second
};

/// A row for each condition. A figure that wasn't measured has no field: of_dense without cuBLAS,
/// of_bf16 (the time of bf16 over this one), of_bf16_share (its share of dense over bf16's) and
/// of_plain where the case is compared with nothing, weights_tb_per_s for tgmm.
nlohmann::json result_rows(const bench::CaseGroup& group, const bench::Case& measured_case,
                           const bench::Measurement& measured);

/// What the other rows are to be seen beside: the rate of a copy, and whose dense product it is.
nlohmann::json machine_row(const CudaRun& run);

/// A row that holds the host's cost alone.
nlohmann::json host_cost_row(const bench::HostCost& cost);

/// The cells of the table, from a row of the result file.
std::vector<std::string> table_cells(const nlohmann::json& row);

/// The shares of dense of all bf16 products in this condition by shape, skew 0 / skew 1; empty
/// without any.
std::string ratio_matrix(const nlohmann::json& rows, bench::Condition condition);

}  // namespace cadre::cli
