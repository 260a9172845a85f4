// The operands of a Case, filled: live elements are random, everything a call must not read is
// poison (rows outside the local groups, weights of empty groups, C where beta is 0, padding).
#pragma once

#include <optional>
#include <vector>

#include "verify/case.h"
#include "verify/index_matrix.h"
#include "verify/placed_tensor.h"
#include "verify/scale_data.h"

namespace cadre::verify {

struct CaseData {
  std::optional<PlacedTensor> lhs, rhs, out, c, bias;
  std::optional<PlacedTensor> preactivation;
  std::optional<PlacedTensor> bias_scale, row_scale, dbias_scale;  ///< one row each
  std::optional<PlacedTensor> alpha_values, beta_values;           ///< one row each
  double alpha = 1;
  double beta = 0;
  std::optional<IndexArray> sizes, offset;
  std::optional<IndexMatrix> lhs_index, rhs_index;  ///< one column each
  std::optional<ScaleData> lhs_scales, rhs_scales;
  /// Of a column-wise copy: where row r of the product lies. Empty where lhs or rhs is none.
  std::vector<int64_t> lhs_columns, rhs_columns;

  double alpha_of(int64_t group) const;
  double beta_of(int64_t group) const;
  /// Element of lhs or rhs as the product sees it: 0 in a row that no index names.
  double lhs_value(int64_t matrix, int64_t row, int64_t col) const;
  double rhs_value(int64_t matrix, int64_t row, int64_t col) const;
  /// The scale of a value that is element `inner` of a sum; `outer` is a row or column of the
  /// result.
  double lhs_scale(int64_t group, int64_t outer, int64_t inner) const;
  double rhs_scale(int64_t group, int64_t outer, int64_t inner) const;
  /// C's tensor: `c` where it has memory of its own, `out` otherwise.
  const PlacedTensor& c_tensor() const { return c ? *c : *out; }

  void upload();
  void download();
  /// Names of inputs that changed.
  std::vector<std::string> changed_inputs() const;
};

CaseData make_data(const Case& test_case, Memory& memory);

}  // namespace cadre::verify
