// See gmm_refusals.h.
#include "cuda/sm90/gmm_refusals.h"

#include "core/text.h"
#include "cuda/sm90/lists.h"

namespace cadre::sm90 {
namespace {

/// What the copy engine must know of an operand's matrices.
struct Rows {
  int64_t columns;  ///< elements of a row
  int64_t stride;
  int64_t groups = 1;  ///< of a stacked operand
};

/// Why an operand can't be read or written by the copy engine; empty when it can.
std::string refuse_operand(std::string_view name, const plan::OperandLayout& layout,
                           const Rows& rows) {
  constexpr int64_t kMaxStrideBytes = int64_t{1} << 34;  // the ragged map's own limit, below TMA's
  const auto size = static_cast<int64_t>(size_of(layout.dtype));
  if (layout.alignment_bytes < 16 && !is_unread_list(layout)) {
    return text(name, ": base isn't known to be a multiple of 16 bytes");
  }
  if (rows.stride < rows.columns) {
    return text(name, ": row stride ", rows.stride, " must be at least its ", rows.columns,
                " columns");
  }
  if (rows.stride >= kMaxStrideBytes / size || rows.stride * size % 16 != 0) {
    return text(name, ": row stride ", rows.stride, " elements (", rows.stride * size,
                " bytes) must be a multiple of 16 bytes below 2^34");
  }
  if (layout.placement != Placement::kStacked || rows.groups == 1) return {};
  if (layout.group_stride < 1 || layout.group_stride >= kMaxStrideBytes * 32 / size ||
      layout.group_stride * size % 16 != 0) {
    return text(name, ": group stride ", layout.group_stride,
                " elements must be a positive multiple of 16 bytes below 2^39");
  }
  return {};
}

/// Why the epilogue doesn't apply the activation; empty when it does.
std::string refuse_activation(const plan::Problem& problem, bool rows_of_k) {
  const Activation& activation = problem.epilogue.activation;
  const plan::OperandLayout& preactivation = problem.epilogue.preactivation;
  if (problem.out.dtype != problem.lhs.dtype) return "an activation's result has lhs's type";
  if (out_columns(problem) % 8 != 0) {
    return "an activation's result must have a multiple of 8 columns";
  }
  if (activation.kind == ActivationKind::kGegluErf &&
      !takes_normal(form_of(activation), rows_of_k)) {
    return "geglu (erf) of concatenated gates needs rhs [g, n, k]";
  }
  if (!preactivation.given()) return {};
  if (preactivation.col_stride != 1) return "preactivation: rows aren't contiguous";
  return refuse_operand("preactivation", preactivation, {problem.n, preactivation.row_stride});
}

/// Why the epilogue doesn't make the gradient of an activation; empty when it does. Nothing here
/// may depend on the number of rows: a row's dot product would.
std::string refuse_gradient(const plan::Problem& problem) {
  const plan::ActivationGradientForm& gradient = problem.epilogue.gradient;
  const plan::EpilogueForm& epilogue = problem.epilogue;
  if (is_fp8(problem.lhs.dtype) || problem.out.dtype != problem.lhs.dtype ||
      gradient.preact.dtype != problem.out.dtype) {
    return "the gradient of an activation needs lhs, out and preact of one 16-bit type";
  }
  if (problem.n % 8 != 0) return "a gradient's activation must have a multiple of 8 columns";
  if (epilogue.has_alpha || epilogue.has_beta || epilogue.bias.given() || epilogue.has_row_scale ||
      epilogue.has_bias_scale) {
    return "with the gradient of an activation there is nothing else in the epilogue";
  }
  if (problem.tail != Tail::kZero || problem.out.placement != Placement::kRows) {
    return "the gradient of an activation needs out in rows and tail = zero";
  }
  if (gradient.row_scale == DType::kF64 || gradient.row_dot != DType::kF32) {
    return "the gradient of an activation computes in f32 and writes row_dot in f32";
  }
  if (has_unread_list(problem)) return "rhs in a list on the device may be unaligned";
  const int64_t columns = problem.n * gradient.activation.columns();
  for (const plan::OperandLayout* layout : {&gradient.preact, &gradient.d_preact}) {
    if (!layout->given()) continue;
    const char* const name = layout == &gradient.preact ? "preact" : "d_preact";
    if (layout->dtype != problem.out.dtype) return text(name, " must be of out's type");
    if (layout->col_stride != 1) return text(name, ": rows aren't contiguous");
    std::string reason = refuse_operand(name, *layout, {columns, layout->row_stride});
    if (!reason.empty()) return reason;
  }
  return {};
}

/// What FP8 operands need beyond the others; empty when they have it.
std::string refuse_fp8(const plan::Problem& problem) {
  const DType out = problem.out.dtype;
  if (out != DType::kBF16 && out != DType::kF16 && out != DType::kF32) {
    return "out of FP8 operands must be bf16, f16 or f32";
  }
  if (problem.epilogue.activates()) return "an activation of FP8 products follows them";
  const plan::ScaleForm& lhs = problem.lhs_scales;
  const plan::ScaleForm& rhs = problem.rhs_scales;
  if (lhs.mode == ScaleMode::kMx || rhs.mode == ScaleMode::kMx) {
    return "has no FP8 of mode mx";
  }
  WeightsLayout weights{};
  if (weights_layout(problem, &weights) && !weights.transposed) {
    return "FP8 needs rhs stored [g, n, k]: wgmma reads rows of k alone";
  }
  if (has_unread_list(problem)) return "FP8 in lists on the device may be unaligned";
  return {};
}

}  // namespace

bool weights_layout(const plan::Problem& problem, WeightsLayout* layout) {
  const plan::OperandLayout& rhs = problem.rhs;
  if (rhs.col_stride == 1) {
    *layout = {problem.transpose_rhs, rhs.row_stride};
    return true;
  }
  *layout = {!problem.transpose_rhs, rhs.col_stride};
  return rhs.row_stride == 1;
}

int64_t out_columns(const plan::Problem& problem) {
  return problem.n / problem.epilogue.activation.columns();
}

ActivationForm form_of(const Activation& activation) {
  if (activation.kind == ActivationKind::kNone) return ActivationForm::kNone;
  if (!activation.gated()) return ActivationForm::kEach;
  return activation.layout == GateLayout::kInterleaved ? ActivationForm::kPairs
                                                       : ActivationForm::kHalves;
}

Promotion promotion_of(const plan::Problem& problem) {
  if (!problem.lhs_scales.in_epilogue()) return Promotion::kScaled;
  return problem.fast_accumulation ? Promotion::kNone : Promotion::kSums;
}

std::string refuse_gmm(const plan::Problem& problem) {
  if (problem.op != plan::Op::kGmm) return "computes gmm alone";
  const DType dtype = problem.lhs.dtype;
  const DType out = problem.out.dtype;
  if (is_fp8(dtype)) {
    if (std::string reason = refuse_fp8(problem); !reason.empty()) return reason;
  } else if (dtype != problem.rhs.dtype || (dtype != DType::kBF16 && dtype != DType::kF16)) {
    return "lhs and rhs must both be bf16, both be f16 or both be FP8";
  } else if (out != dtype && out != DType::kF32) {
    return "out must be of lhs's type or f32";
  }
  if (problem.compute != DType::kF32) return "computes in f32 alone";
  if (problem.m < 1 || problem.n < 1 || problem.k < 1 || problem.num_local_groups < 1) {
    return "m, n, k and rhs.num_groups must be at least 1";
  }
  // Coordinates of the copy engine and tile numbers within a group are 32-bit.
  constexpr int64_t kMaxExtent = 0x7fff0000;
  if (problem.m > kMaxExtent || problem.n > kMaxExtent || problem.k > kMaxExtent ||
      problem.num_groups > kMaxExtent ||
      (problem.m / 64 + 1) * (problem.n / 128 + 1) > kMaxExtent) {
    return "m, n, k or num_groups is beyond 32-bit coordinates";
  }
  if (problem.lhs.col_stride != 1) return "lhs: rows aren't contiguous";
  if (problem.out.col_stride != 1) return "out: rows aren't contiguous";
  WeightsLayout weights{};
  if (!weights_layout(problem, &weights)) return "rhs: neither rows nor columns are contiguous";
  const int64_t rhs_columns = weights.transposed ? problem.k : problem.n;
  std::string reason = refuse_operand("lhs", problem.lhs, {problem.k, problem.lhs.row_stride});
  if (reason.empty()) {
    reason = refuse_operand("rhs", problem.rhs,
                            {rhs_columns, weights.row_stride, problem.num_local_groups});
  }
  if (reason.empty()) {
    reason = refuse_operand("out", problem.out, {out_columns(problem), problem.out.row_stride});
  }
  if (reason.empty() && problem.epilogue.activates()) {
    reason = refuse_activation(problem, weights.transposed);
  }
  if (reason.empty() && problem.epilogue.gradient.given()) reason = refuse_gradient(problem);
  if (reason.empty() && problem.epilogue.has_beta && problem.epilogue.c.given()) {
    if (problem.epilogue.c.dtype != problem.out.dtype) return "c must be of out's type";
    if (problem.epilogue.c.col_stride != 1) return "c: rows aren't contiguous";
    reason = refuse_operand("c", problem.epilogue.c, {problem.n, problem.epilogue.c.row_stride});
  }
  return reason;
}

}  // namespace cadre::sm90
