// A Case: one call of an op, described without data. Data follow from its seed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cadre/cadre.h"

namespace cadre::verify {

enum class Op { kGmm, kTgmm, kGroupedGemm, kBiasGrad };

/// How an operand lies in memory. `form` must be one the op takes for that operand.
struct Layout {
  Placement form = Placement::kStacked;
  int64_t row_padding = 0;    ///< elements behind each row
  int64_t col_stride = 1;     ///< elements from one column to the next
  bool column_major = false;  ///< rows and columns change places; padding is behind columns then
  bool reverse_rows = false;  ///< a negative row stride
  bool reverse_cols = false;  ///< a negative column stride
  // Strides of 0, for inputs alone: every row, column or matrix is the last one set.
  bool broadcast_rows = false;
  bool broadcast_cols = false;
  bool broadcast_groups = false;  ///< kStacked
  int64_t offset_elements = 0;    ///< of the first element, from a 256-byte boundary
  int64_t gap_elements = 0;       ///< between the matrices of two groups
  bool explicit_offsets = false;  ///< kPacked: in shuffled order, with an offset for each group
};

/// What group sizes may be.
inline constexpr std::array kIndexTypes = {DType::kI8,  DType::kU8,  DType::kI16, DType::kU16,
                                           DType::kI32, DType::kU32, DType::kI64, DType::kU64};

enum class Scalars { kDefault, kUniform, kPerGroup };
/// Where C is: not given, given and exactly the output, or a tensor of its own.
enum class COperand { kAbsent, kOutput, kSeparate };
enum class Presence { kAbsent, kTensor, kList };

struct GemmDims {
  int64_t m;
  int64_t k;
  int64_t n;
};

struct Case {
  Op op = Op::kGmm;
  uint64_t seed = 1;
  DType lhs = DType::kF32;  ///< A of grouped_gemm, dy of bias_grad
  DType rhs = DType::kF32;
  DType out = DType::kF32;  ///< dbias of bias_grad

  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;
  std::vector<int64_t> group_sizes{};
  DType sizes_dtype = DType::kI32;
  bool ends = false;              ///< the groups are given by their ends
  int64_t num_local_groups = -1;  ///< -1: all groups
  int64_t group_offset = 0;
  std::vector<GemmDims> dims{};  ///< grouped_gemm: instead of m, k, n and group_sizes

  bool transpose_lhs = false;  ///< grouped_gemm alone
  bool transpose_rhs = false;
  Scalars alpha = Scalars::kDefault;
  Scalars beta = Scalars::kDefault;  ///< per group: some of them 0
  bool accumulate = false;
  COperand c = COperand::kAbsent;
  DType c_dtype = DType::kF32;
  Presence bias = Presence::kAbsent;
  DType bias_dtype = DType::kF32;
  bool bias_scale = false;
  bool row_scale = false;
  DType scale_dtype = DType::kF32;
  /// Of FP8 operands. Those of tgmm are column-wise copies, in kTensor if `tensor_copies` says so.
  ScaleMode lhs_mode = ScaleMode::kNone;
  ScaleMode rhs_mode = ScaleMode::kNone;
  bool e8m0_scales = false;        ///< kBlock128; those of kMx always are
  bool one_scale_for_all = false;  ///< kTensor: of the weights of all groups
  bool tensor_copies = false;      ///< tgmm, kTensor
  bool nan_scales = false;         ///< one in 64 is NaN
  /// Every scale is multiplied by 2 to the power of this. Codes are tiny where it is above 0 and
  /// large where it is below, so that products stay in f32's range though those of two scales
  /// don't.
  int scale_exponent = 0;
  bool lhs_square_blocks = false;  ///< grouped_gemm, kBlock128: 128 x 128, as rhs has
  Layout lhs_scales_layout{.form = Placement::kRows}, rhs_scales_layout{};
  Activation activation{};     ///< gmm alone, with out as rows and without C
  bool preactivation = false;  ///< written beside out
  Tail tail = Tail::kZero;
  bool dbias = true;         ///< bias_grad alone
  bool dbias_scale = false;  ///< bias_grad alone

  /// Rows that the operand has in memory where the product's are taken by index (gmm's and tgmm's
  /// lhs, tgmm's rhs); -1: its rows are the product's.
  int64_t lhs_rows = -1;
  int64_t rhs_rows = -1;
  DType rows_dtype = DType::kI32;

  Layout lhs_layout{}, rhs_layout{}, out_layout{}, c_layout{}, bias_layout{};
  int64_t vector_stride = 1;     ///< of bias_scale, row_scale, alpha, beta and dbias_scale
  int64_t nan_group = -1;        ///< a local group with NaN among its inputs
  bool large_values = false;     ///< int8 alone: all near 127, so that sums pass 2^24
  bool sizes_on_device = false;  ///< sizes, offset, extents and pointer lists; no effect on a CPU
  Precision precision = Precision::kDefault;
  bool packed_weights = false;  ///< gmm on a CPU: with weights packed ahead
  std::string kernel{};         ///< pinned; empty: the library chooses

  /// The operand is a column-wise copy.
  bool columns(ScaleMode mode) const {
    if (op != Op::kTgmm || mode == ScaleMode::kNone) return false;
    return mode != ScaleMode::kTensor || tensor_copies;
  }
  /// FP8 products are added as Hopper's tensor cores do it; check_case() finds out.
  bool tensor_core_fp8 = false;

  int64_t local_groups() const;
  /// Columns of the result.
  int64_t out_cols() const { return n / activation.columns(); }
  /// Rows before the first local group, and behind the last one.
  int64_t local_begin() const;
  int64_t local_end() const;
  /// First row of a local group, and its number of rows.
  int64_t group_begin(int64_t local) const;
  int64_t group_rows(int64_t local) const;
  /// C is read: tail and foreign rows are kept.
  bool has_beta() const { return accumulate || beta != Scalars::kDefault; }
};

/// One line with everything that isn't a default.
std::string to_string(const Case& test_case);

/// A case of any op, dtypes, layouts and options, all drawn from the seed.
Case random_case(uint64_t seed);

}  // namespace cadre::verify
