// The row ops as plain loops in double.
#pragma once

#include "plan/problem.h"
#include "plan/row_call.h"

namespace cadre::cpu {

void reference_rows(const plan::Problem& problem, const plan::RowCall& call);

// reference_quantize.cc
void reference_quantize(const plan::Problem& problem, const QuantizeArgs& args);
void reference_dequantize(const plan::Problem& problem, const DequantizeArgs& args);
void reference_amax(const plan::Problem& problem, const AmaxArgs& args);

/// Columns of the gate and the up part of result `i`.
struct GateColumns {
  int64_t gate;
  int64_t up;
};
inline GateColumns gate_columns(const Activation& activation, int64_t i, int64_t width) {
  if (!activation.gated()) return {i, i};
  if (activation.layout == GateLayout::kInterleaved) return {2 * i, 2 * i + 1};
  return {i, width + i};
}

}  // namespace cadre::cpu
