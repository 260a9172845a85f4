// A call of quantize on guarded operands, followed by dequantize and amax, and what must come out.
#pragma once

#include <functional>
#include <vector>

#include "tests/contract/contract.h"
#include "tests/contract/quantize_model.h"

namespace cadre::contract {

struct QuantizeCase {
  ScaleMode mode = ScaleMode::kBlock128;
  DType row_type = DType::kE4M3;     ///< of `rows`; kInvalid: not asked for
  DType column_type = DType::kE4M3;  ///< the same for `columns`
  bool weights = false;
  std::vector<int64_t> sizes{};  ///< of weights: n of each group, all alike
  int64_t tail = 0;
  int64_t k = 0;

  bool given_sizes = true;
  bool ends = false;
  DType sizes_type = DType::kI32;
  bool e8m0 = false;       ///< scales of kBlock128
  bool one_scale = false;  ///< of weights in kTensor
  ScaleModel rule{};
  bool gathers = false;
  bool scales_rows = false;
  Activation activation{};
  Layout layout{};
  /// Element [row, col] of x; missing: random numbers of many magnitudes.
  std::function<double(int64_t row, int64_t col)> value{};
  uint64_t seed = 1;
};

/// Runs the case and returns what was wrong.
Failures check_quantize(const Subject& subject, const DTypes& types, const QuantizeCase& c);

}  // namespace cadre::contract
