// Operands of the row ops between guards: index matrices with given numbers, matrices with random
// ones.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/contract/contract.h"
#include "verify/index_matrix.h"
#include "verify/placed_tensor.h"
#include "verify/random.h"

namespace cadre::contract {

/// Below, at and above whole vectors and blocks.
inline constexpr int64_t kRowWidths[] = {1, 7, 8, 63, 64, 65, 127, 128, 129, 257, 520};

void fill(verify::IndexMatrix& matrix, const std::vector<int64_t>& values);

/// A matrix of one layout; poison until it is given numbers.
std::unique_ptr<verify::PlacedTensor> matrix(const Subject& subject, DType dtype, int64_t rows,
                                             int64_t cols, Layout layout, verify::Random& random);
void randomize(verify::PlacedTensor& tensor, verify::Random& random);
void allow_all(verify::PlacedTensor& tensor);

}  // namespace cadre::contract
