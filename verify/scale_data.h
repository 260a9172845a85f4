// The scales of one operand of a Case, laid out and filled.
#pragma once

#include <optional>

#include "cadre/scaled_tensor.h"
#include "verify/case.h"
#include "verify/placed_tensor.h"
#include "verify/random.h"

namespace cadre::verify {

class ScaleData {
 public:
  enum class Operand { kLhs, kRhs };

  /// Scales of empty groups, of rows outside the local groups and between strides are poison.
  ScaleData(const Case& c, Operand operand, Memory& memory, Memory& index_memory, Random& random);

  /// One scale for a row of gmm's lhs, whichever group it is in.
  bool is_of_rows() const { return kind_ == Kind::kRows && c_.op == Op::kGmm; }
  /// `outer`: a row of the result for lhs, a column for rhs; of all rows where it is_of_rows.
  double value(int64_t group, int64_t outer, int64_t inner) const;
  /// As an op takes them.
  Scales scales() const;

  PlacedTensor& tensor() { return *tensor_; }
  const PlacedTensor& tensor() const { return *tensor_; }

 private:
  enum class Kind { kRows, kColumns, kWeights };
  struct Place {
    int64_t matrix, row, col;
  };

  Place place_of(int64_t group, int64_t outer, int64_t inner) const;
  MatrixShape shape_of(int64_t outer, int64_t inner) const;
  void fill(Random& random);

  const Case& c_;
  ScaleMode mode_;
  Kind kind_;
  bool inner_first_ = false;
  int64_t outer_block_ = 1, inner_block_ = 0;
  std::vector<int64_t> first_line_;  ///< kColumns: of each local group
  std::optional<PlacedTensor> tensor_;
};

}  // namespace cadre::verify
