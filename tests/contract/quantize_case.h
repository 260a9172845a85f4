// A call of quantize on guarded operands, followed by dequantize and amax, and what must come out.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "tests/contract/contract.h"
#include "tests/contract/quantize_model.h"
#include "verify/index_matrix.h"
#include "verify/placed_tensor.h"
#include "verify/random.h"

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
  const QuantizeCase& c_;
  bool transposed_;
  std::unique_ptr<verify::PlacedTensor> codes_, scales_;
};

/// Runs the case and returns what was wrong.
Failures check_quantize(const Subject& subject, const DTypes& types, const QuantizeCase& c);

}  // namespace cadre::contract
