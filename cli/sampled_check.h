// Compares sampled elements of a result with the reference backend. The tolerance is a bound,
// derived from norms, the length of the sums and the epsilons: no correct kernel can exceed it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cadre/bias_grad.h"
#include "cadre/gmm.h"
#include "cadre/tgmm.h"
#include "verify/tolerance.h"

namespace cadre::cli {

struct CheckResult {
  int64_t elements = 0;
  double error = 0;      ///< of the element whose error/tolerance is largest
  double tolerance = 0;  ///< of that element
  double ratio = 0;      ///< error / tolerance
  std::string where;     ///< "[row, col]"

  bool passed() const { return elements > 0 && ratio <= 1; }
};

/// Compares one element of type `out` with what it should be.
void note(CheckResult* result, double got, const verify::Expected& expected, DType out,
          const std::string& where);

/// All tensors in host memory, sizes and scalars included. Row samples hold every group's first
/// and last row and the tail's; columns are spread over n. No C, no accumulate. FP8 operands have
/// scales of mode row or block_128.
Status check_gmm(Context& reference, const GmmArgs& args, CheckResult* result);

/// tgmm may add to its output: make this before the call, while the output holds C.
class TgmmCheck {
 public:
  explicit TgmmCheck(const TgmmArgs& args);
  Status check(Context& reference, CheckResult* result) const;

 private:
  TgmmArgs args_;
  std::vector<int64_t> rows_;  ///< sampled rows (of k) and columns (of n) of every group's matrix
  std::vector<int64_t> cols_;
  std::vector<double> before_;
};

/// dbias alone, without accumulate.
Status check_bias_grad(Context& reference, const BiasGradArgs& args, CheckResult* result);

}  // namespace cadre::cli
