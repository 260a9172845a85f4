// Where the groups of quantize, dequantize and amax lie on a CPU: their rows, and for each
// arrangement of FP8 data the addresses of codes and scales, by row and column of the source.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cadre/scaled_tensor.h"
#include "cpu/gemm_item.h"
#include "plan/problem.h"

namespace cadre::cpu {

/// Rows of a band: the largest block, which all others divide.
inline constexpr int64_t kBandRows = 128;

/// Scales of a group's codes: element [row, col] has that at row / row_block, col / col_block.
struct GroupScales {
  char* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_block = 1;
  int64_t col_block = 1;
  int64_t row_stride = 0;  ///< in scales, from one block to the next
  int64_t col_stride = 0;

  float at(int64_t row, int64_t col) const;
  void set(int64_t row, int64_t col, float scale) const;
  /// Of columns [col, col + cols) of a row, `col` the first of a block.
  void read(int64_t row, int64_t col, int64_t cols, float* to) const;
  /// Whether row `r` of a band is the first of a block.
  bool begins_block(int64_t r) const { return r % std::min(row_block, kBandRows) == 0; }

 private:
  int64_t index(int64_t row, int64_t col) const {
    return row / row_block * row_stride + col / col_block * col_stride;
  }
};

/// A group's codes and scales in one arrangement; data is null where that isn't given.
struct GroupCodes {
  MatrixRef codes{};  ///< element [row, col] of the source, whatever the order in memory
  GroupScales scales{};
  bool pads = false;  ///< zeros follow the rows, up to a multiple of kColumnAlignment

  bool given() const { return codes.dtype != DType::kInvalid; }
};

/// The groups of a call: of rows, or the matrices of weights.
class QuantizedGroups {
 public:
  /// `x` is the call's operand, which decides between the two; `sizes` are host sizes that have
  /// been checked, or not given for one group of all rows.
  QuantizedGroups(const plan::Problem& problem, const TensorView& x, const GroupSizes& sizes);

  int64_t count() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  int64_t begin(int64_t group) const { return offsets_[static_cast<size_t>(group)]; }
  int64_t rows(int64_t group) const { return begin(group + 1) - begin(group); }
  /// Where the rows behind the last group begin.
  int64_t tail_begin() const { return offsets_.back(); }

  int64_t bands() const { return first_band_.back(); }
  struct Band {
    int64_t group;
    int64_t row;   ///< of the group
    int64_t rows;  ///< at most kBandRows
  };
  Band band(int64_t index) const;

  /// A group of x, or of dequantize's out.
  MatrixRef plain(const TensorView& view, int64_t group) const;
  /// Codes in the order of the source, scales along its columns. Group count() is the tail.
  GroupCodes in_rows(const ScaledTensor& tensor, const plan::ScaleForm& form, int64_t group) const;
  /// The transposed copy.
  GroupCodes in_columns(const ScaledTensor& tensor, const plan::ScaleForm& form,
                        int64_t group) const;

 private:
  void add_group(int64_t rows);

  bool weights_;
  std::vector<int64_t> offsets_{0};
  std::vector<int64_t> first_slice_{0};  ///< of kColumnAlignment rows, over all groups before
  std::vector<int64_t> first_band_{0};
};

}  // namespace cadre::cpu
