// One arrangement of a quantised operand: its codes and scales between guards, and which of them
// belong to an element of the source.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "tests/contract/quantize_case.h"
#include "verify/placed_tensor.h"
#include "verify/random.h"

namespace cadre::contract {

int64_t rows_of(const QuantizeCase& c);
int64_t groups_of(const QuantizeCase& c);
int64_t size_of_group(const QuantizeCase& c, int64_t group);
int64_t begin_of(const QuantizeCase& c, int64_t group);

/// One matrix, or a stack of matrices of one shape.
std::unique_ptr<verify::PlacedTensor> place(const Subject& subject, DType dtype,
                                            std::vector<verify::MatrixShape> shapes,
                                            verify::MatrixShape shape_of_none, Layout layout,
                                            verify::Random& random);
/// Of a case's operand: one for each group of weights, one for rows.
std::vector<verify::MatrixShape> matrices(const QuantizeCase& c, int64_t rows, int64_t cols);
/// Rank 3 for weights, rank 2 for rows.
TensorView data_view(const QuantizeCase& c, const verify::PlacedTensor& tensor);

/// One arrangement: codes, scales, and which belong to an element of the source.
class Arrangement {
 public:
  using Index = std::array<int64_t, 3>;  ///< matrix, row, column

  Arrangement(const Subject& subject, const QuantizeCase& c, bool transposed,
              verify::Random& random);

  Index code_of(int64_t group, int64_t row, int64_t col) const;
  Index scale_of(int64_t group, int64_t row, int64_t col) const;
  /// Every scale that is written, whether or not elements share it.
  std::vector<Index> all_scales() const;
  bool is_tail(const Index& scale) const;
  /// Codes that are no elements of a group: padding and tail.
  std::vector<Index> zeros() const;
  ScaledTensor operand() const;
  /// A view of f32 numbers in the place of the scales.
  static std::unique_ptr<verify::PlacedTensor> scale_tensor(const Subject& subject,
                                                            const QuantizeCase& c, bool transposed,
                                                            DType dtype, verify::Random& random);
  TensorView scale_view(const verify::PlacedTensor& scales) const;

  verify::PlacedTensor& codes() { return *codes_; }
  const verify::PlacedTensor& codes() const { return *codes_; }
  verify::PlacedTensor& scales() { return *scales_; }
  const verify::PlacedTensor& scales() const { return *scales_; }
  DType dtype() const { return codes_->dtype(); }

 private:
  /// What lies before a group, found once.
  struct Before {
    int64_t rows;
    int64_t strips;  ///< of 32 rows
    int64_t bands;   ///< of 128
  };

  const QuantizeCase& c_;
  bool transposed_;
  std::vector<Before> before_;
  std::unique_ptr<verify::PlacedTensor> codes_, scales_;
};

}  // namespace cadre::contract
