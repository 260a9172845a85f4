// Types and operands that the checks of the row ops share.
#include "tests/contract/row_operands.h"

#include "tests/contract/row_checks.h"

namespace cadre::contract {

using verify::IndexMatrix;
using verify::PlacedTensor;
using verify::Random;

const std::vector<DTypes>& row_types() {
  static const std::vector<DTypes> types = {
      {DType::kF64, DType::kF64, DType::kF64},   {DType::kF32, DType::kF32, DType::kF32},
      {DType::kBF16, DType::kF32, DType::kBF16}, {DType::kBF16, DType::kBF16, DType::kBF16},
      {DType::kF16, DType::kF16, DType::kF16},   {DType::kBF16, DType::kF32, DType::kF32},
      {DType::kF32, DType::kBF16, DType::kF16},
  };
  return types;
}

void fill(IndexMatrix& matrix, const std::vector<int64_t>& values) {
  for (int64_t i = 0; i < matrix.rows() * matrix.cols(); ++i) {
    matrix.set(i / matrix.cols(), i % matrix.cols(), values[static_cast<size_t>(i)]);
  }
}

std::unique_ptr<PlacedTensor> matrix(const Subject& subject, DType dtype, int64_t rows,
                                     int64_t cols, Layout layout, Random& random) {
  layout.form = Placement::kRows;
  return std::make_unique<PlacedTensor>(subject.memory, subject.memory, dtype,
                                        std::vector<verify::MatrixShape>{{rows, cols}},
                                        verify::MatrixShape{rows, cols}, layout, random);
}

void randomize(PlacedTensor& tensor, Random& random) {
  const verify::MatrixShape shape = tensor.shapes()[0];
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      tensor.set(0, row, col, random.uniform(-2, 2));
    }
  }
}

void allow_all(PlacedTensor& tensor) {
  const verify::MatrixShape shape = tensor.shapes()[0];
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) tensor.allow_change(0, row, col);
  }
}

}  // namespace cadre::contract
