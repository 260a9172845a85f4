// The cases of `cadre bench --device cuda` that are measured through tensors of the tool's own:
// whole layers, and products of FP8 operands.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "bench/cuda/cases.h"
#include "bench/cuda/runner.h"

namespace cadre::cli {

/// A row for each condition, or one with "refused". `repeats` is for the mixed condition.
Status measure_layer(bench::CudaRunner& runner, const bench::LayerCase& work, int repeats,
                     nlohmann::json* rows);
Status measure_scaled(bench::CudaRunner& runner, const bench::ScaledCase& work, int repeats,
                      nlohmann::json* rows);

}  // namespace cadre::cli
