// Problem: what is asked, without pointers. Plain, printable, hashable: the key of every choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cadre/context.h"
#include "cadre/gmm.h"
#include "cadre/tensor.h"

namespace cadre::plan {

enum class Op : int32_t {
  kGmm,
  kTgmm,
  kGroupedGemm,
  kBiasGrad,
  kRoute,
  kPermute,
  kCombine,
  kCombineGrad,
  kSelectExperts,
  kSelectExpertsGrad,
};

std::string_view name_of(Op op);

/// The ops of plan/row_call.h.
constexpr bool is_row_op(Op op) { return op >= Op::kRoute; }

/// How an operand lies in memory.
struct OperandLayout {
  Placement placement = Placement::kAbsent;
  DType dtype = DType::kInvalid;
  int64_t group_stride = 0;  ///< elements
  int64_t row_stride = 0;    ///< of contiguous matrices of one width: that width
  int64_t col_stride = 1;
  bool contiguous = false;
  /// The largest power of two, at most 128, that divides the base address and, where the operand is
  /// a list on the host, every pointer; 1 for a list on a device, whose pointers nobody has read.
  int32_t alignment_bytes = 1;

  bool given() const { return placement != Placement::kAbsent; }
  friend bool operator==(const OperandLayout&, const OperandLayout&) = default;
};

/// gmm: lhs [m,k] rows, rhs [g,k,n], out [m,n]. tgmm: lhs [m,k], rhs [m,n] rows, out [g,k,n].
/// grouped_gemm: lhs = A, rhs = B, out = D; m, k, n are the largest of any group.
/// bias_grad: lhs = dy [m,n], out = dbias; k is 0.
/// Row ops: m rows of n elements, k slots of each token; lhs is the operand that gives the dims.
struct Problem {
  Op op = Op::kGmm;
  Device device{};
  int64_t m = 0;
  int64_t k = 0;
  int64_t n = 0;
  int64_t num_groups = 0;        ///< entries of group_sizes
  int64_t num_local_groups = 0;  ///< groups whose weights or outputs are here

  OperandLayout lhs{}, rhs{}, c{}, out{}, bias{};
  bool transpose_lhs = false;   ///< grouped_gemm alone
  bool transpose_rhs = false;   ///< rhs is stored [n, k]
  DType compute = DType::kF32;  ///< type of the accumulator and the epilogue: f32, f64 or i32

  DType sizes_dtype = DType::kInvalid;
  bool sizes_on_device = false;
  bool offset_on_device = false;
  Tail tail = Tail::kZero;
  bool has_alpha = false;  ///< anything but the constant 1
  bool has_beta = false;   ///< anything but the constant 0: C is read and uncovered rows are kept
  bool has_bias_scale = false;
  bool has_row_scale = false;

  Precision precision = Precision::kDefault;
  int64_t average_rows = 0;  ///< rows of a typical group

  friend bool operator==(const Problem&, const Problem&) = default;
};

/// "gmm m=4096 k=2048 n=1536 groups=8 bf16 x bf16^T -> bf16 ..."
std::string to_string(const Problem& problem);

size_t hash_of(const Problem& problem);

}  // namespace cadre::plan
