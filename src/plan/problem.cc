// Printing and hashing of Problem.
#include "plan/problem.h"

#include <functional>

#include "core/text.h"

namespace cadre::plan {
namespace {

constexpr std::string_view kPlacementSuffix[] = {"", "", "", " list", " packed"};

std::string describe(const OperandLayout& layout) {
  return text(cadre::name_of(layout.dtype), kPlacementSuffix[static_cast<int>(layout.placement)]);
}

/// " block_128", " row columns", " block_128 e8m0 list"
std::string describe(const ScaleForm& scales) {
  if (!scales.given()) return "";
  return text(" ", cadre::name_of(scales.mode), scales.dtype == DType::kE8M0 ? " e8m0" : "",
              scales.columns ? " columns" : "", scales.list ? " list" : "");
}

constexpr std::string_view kActivations[] = {"no activation", "silu",        "gelu (tanh)",
                                             "gelu (erf)",    "relu2",       "swiglu",
                                             "geglu (tanh)",  "geglu (erf)", "clamped swiglu"};

}  // namespace

std::string_view name_of(Op op) {
  switch (op) {
    case Op::kGmm:
      return "gmm";
    case Op::kTgmm:
      return "tgmm";
    case Op::kGroupedGemm:
      return "grouped_gemm";
    case Op::kBiasGrad:
      return "bias_grad";
    case Op::kRoute:
      return "route";
    case Op::kPermute:
      return "permute";
    case Op::kCombine:
      return "combine";
    case Op::kCombineGrad:
      return "combine_grad";
    case Op::kSelectExperts:
      return "select_experts";
    case Op::kSelectExpertsGrad:
      return "select_experts_grad";
    case Op::kActivate:
      return "activate";
    case Op::kActivateGrad:
      return "activate_grad";
    case Op::kQuantize:
      return "quantize";
    case Op::kDequantize:
      return "dequantize";
    case Op::kAmax:
      return "amax";
  }
  return "unknown";
}

std::string to_string(const Problem& p) {
  std::string out =
      text(name_of(p.op), " m=", p.m, " k=", p.k, " n=", p.n, " groups=", p.num_groups);
  if (p.num_local_groups != p.num_groups) out += text(" local=", p.num_local_groups);
  out += text(" ", describe(p.lhs), p.transpose_lhs ? "^T" : "", describe(p.lhs_scales));
  if (p.rhs.given()) {
    out += text(" x ", describe(p.rhs), p.transpose_rhs ? "^T" : "", describe(p.rhs_scales));
  }
  out += text(" -> ", describe(p.out), " in ", cadre::name_of(p.compute));
  out += p.device.kind == DeviceKind::kCuda ? text(" on cuda:", p.device.index) : " on cpu";
  if (p.lhs_rows.by_index()) out += text(", ", p.lhs_rows.rows, " rows of lhs by index");
  if (p.rhs_rows.by_index()) out += text(", ", p.rhs_rows.rows, " rows of rhs by index");
  if (p.sizes_on_device) out += ", device sizes";
  if (p.epilogue.has_alpha) out += ", alpha";
  if (p.epilogue.has_beta) out += p.epilogue.c.given() ? ", beta * c" : ", beta * out";
  if (p.epilogue.bias.given()) out += ", bias";
  if (p.epilogue.has_bias_scale) out += ", bias_scale";
  if (p.epilogue.has_row_scale) out += ", row_scale";
  if (p.epilogue.activates()) {
    out += text(", ", kActivations[static_cast<int>(p.epilogue.activation.kind)]);
    if (p.epilogue.activation.layout == GateLayout::kInterleaved) out += " interleaved";
    if (p.epilogue.preactivation.given()) out += " with its input";
  }
  const ActivationGradientForm& gradient = p.epilogue.gradient;
  if (gradient.given()) {
    out += text(", gradient of ", kActivations[static_cast<int>(gradient.activation.kind)]);
    if (gradient.activation.layout == GateLayout::kInterleaved) out += " interleaved";
    if (gradient.has_row_dot) out += " with dot products";
  }
  if (p.tail == Tail::kUntouched) out += ", tail untouched";
  if (p.tail == Tail::kForbid) out += ", tail forbidden";
  if (p.precision == Precision::kTf32) out += ", tf32";
  if (p.fast_accumulation) out += ", fast accumulation";
  return out;
}

size_t hash_of(const Problem& p) {
  size_t seed = 0;
  const auto mix = [&seed](auto value) {
    seed ^= std::hash<int64_t>{}(static_cast<int64_t>(value)) + 0x9e3779b97f4a7c15ull +
            (seed << 6) + (seed >> 2);
  };
  for (const OperandLayout* layout :
       {&p.lhs, &p.rhs, &p.out, &p.epilogue.c, &p.epilogue.bias, &p.epilogue.preactivation,
        &p.epilogue.gradient.preact, &p.epilogue.gradient.d_preact}) {
    mix(layout->placement);
    mix(layout->dtype);
    mix(layout->group_stride);
    mix(layout->row_stride);
    mix(layout->col_stride);
    mix(layout->contiguous);
    mix(layout->alignment_bytes);
  }
  for (const ScaleForm* scales : {&p.lhs_scales, &p.rhs_scales}) {
    mix(scales->mode);
    mix(scales->dtype);
    mix(scales->group_stride);
    mix(scales->outer_stride);
    mix(scales->inner_stride);
    mix(scales->outer_block);
    mix(scales->columns);
    mix(scales->list);
    mix(scales->lines);
    mix(scales->alignment_bytes);
  }
  for (int64_t value : {p.m, p.k, p.n, p.num_groups, p.num_local_groups, p.average_rows})
    mix(value);
  for (bool flag : {p.transpose_lhs, p.transpose_rhs, p.sizes_on_device, p.offset_on_device,
                    p.epilogue.has_alpha, p.epilogue.has_beta, p.epilogue.has_bias_scale,
                    p.epilogue.has_row_scale, p.fast_accumulation}) {
    mix(flag);
  }
  for (const RowSource* source : {&p.lhs_rows, &p.rhs_rows}) {
    mix(source->rows);
    mix(source->index);
  }
  for (const Activation* activation : {&p.epilogue.activation, &p.epilogue.gradient.activation}) {
    mix(activation->kind);
    mix(activation->layout);
    for (double value : {activation->alpha, activation->limit, activation->up_offset}) {
      mix(std::hash<double>{}(value));
    }
  }
  mix(p.epilogue.gradient.row_scale);
  mix(p.epilogue.gradient.row_dot);
  mix(p.epilogue.gradient.has_row_dot);
  mix(p.op);
  mix(p.device.kind);
  mix(p.device.index);
  mix(p.compute);
  mix(p.sizes_dtype);
  mix(p.tail);
  mix(p.precision);
  return seed;
}

}  // namespace cadre::plan
