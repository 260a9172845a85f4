// Problem: what is asked, without pointers. Plain, printable, hashable: the key of every choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cadre/context.h"
#include "cadre/gmm.h"
#include "cadre/tensor.h"
#include "plan/epilogue.h"
#include "plan/operand_layout.h"
#include "plan/row_source.h"
#include "plan/scale_form.h"

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
  kActivate,
  kActivateGrad,
  kQuantize,
  kDequantize,
  kAmax,
};

std::string_view name_of(Op op);

/// The ops of plan/row_call.h.
constexpr bool is_row_op(Op op) { return op >= Op::kRoute; }

/// gmm: lhs [m,k] rows, rhs [g,k,n], out [m,n]. tgmm: lhs [m,k], rhs [m,n] rows, out [g,k,n].
/// tgmm of column-wise copies: lhs [k, capacity], rhs [n, capacity], m the smaller of the
/// capacities. grouped_gemm: lhs = A, rhs = B, out = D; m, k, n are the largest of any group.
/// bias_grad: lhs = dy [m,n], out = dbias; k is 0.
/// Row ops: m rows of n elements, k slots of each token; lhs is the operand that gives the dims.
/// quantize: lhs_scales are those of `rows`, rhs_scales those of `columns`; dequantize, amax:
/// lhs_scales.
struct Problem {
  Op op = Op::kGmm;
  Device device{};
  int64_t m = 0;  ///< rows of the product: of gmm's out, of both operands of tgmm
  int64_t k = 0;
  int64_t n = 0;
  int64_t num_groups = 0;        ///< entries of group_sizes
  int64_t num_local_groups = 0;  ///< groups whose weights or outputs are here

  OperandLayout lhs{}, rhs{}, out{};
  ScaleForm lhs_scales{}, rhs_scales{};  ///< of FP8 operands
  RowSource lhs_rows{};                  ///< gmm, tgmm
  RowSource rhs_rows{};                  ///< tgmm
  EpilogueForm epilogue{};
  bool transpose_lhs = false;   ///< grouped_gemm alone
  bool transpose_rhs = false;   ///< rhs is stored [n, k]
  DType compute = DType::kF32;  ///< type of the accumulator and the epilogue: f32, f64 or i32

  DType sizes_dtype = DType::kInvalid;
  bool sizes_on_device = false;
  bool offset_on_device = false;
  Tail tail = Tail::kZero;

  Precision precision = Precision::kDefault;
  int64_t average_rows = 0;        ///< rows of a typical group
  bool fast_accumulation = false;  ///< FP8 alone

  friend bool operator==(const Problem&, const Problem&) = default;
};

/// "gmm m=4096 k=2048 n=1536 groups=8 bf16 x bf16^T -> bf16 ..."
std::string to_string(const Problem& problem);

size_t hash_of(const Problem& problem);

}  // namespace cadre::plan
