// Group positions and printing of a Case.
#include "verify/case.h"

#include <numeric>

#include "core/text.h"

namespace cadre::verify {
namespace {

int64_t sum_of_first(const std::vector<int64_t>& sizes, int64_t count) {
  return std::accumulate(sizes.begin(), sizes.begin() + count, int64_t{0});
}

std::string_view name_of_op(Op op) {
  switch (op) {
    case Op::kGmm:
      return "gmm";
    case Op::kTgmm:
      return "tgmm";
    case Op::kGroupedGemm:
      return "grouped_gemm";
    case Op::kBiasGrad:
      return "bias_grad";
  }
  return "unknown";
}

std::string describe(std::string_view name, const Layout& layout) {
  std::string out;
  if (layout.form == Placement::kList) out += " list";
  if (layout.form == Placement::kPacked)
    out += layout.explicit_offsets ? " packed+offsets" : " packed";
  if (layout.column_major) out += " column-major";
  if (layout.row_padding) out += text(" pad ", layout.row_padding);
  if (layout.col_stride != 1) out += text(" step ", layout.col_stride);
  if (layout.broadcast_rows) out += " rows-broadcast";
  if (layout.broadcast_cols) out += " cols-broadcast";
  if (layout.broadcast_groups) out += " groups-broadcast";
  if (layout.reverse_rows) out += " rows-reversed";
  if (layout.reverse_cols) out += " cols-reversed";
  if (layout.offset_elements) out += text(" from ", layout.offset_elements);
  if (layout.gap_elements) out += text(" gap ", layout.gap_elements);
  return out.empty() ? "" : text(", ", name, ":", out);
}

}  // namespace

int64_t Case::local_groups() const {
  if (op == Op::kGroupedGemm) return static_cast<int64_t>(dims.size());
  return num_local_groups < 0 ? static_cast<int64_t>(group_sizes.size()) : num_local_groups;
}

int64_t Case::local_begin() const { return sum_of_first(group_sizes, group_offset); }

int64_t Case::local_end() const { return sum_of_first(group_sizes, group_offset + local_groups()); }

int64_t Case::group_begin(int64_t local) const {
  return sum_of_first(group_sizes, group_offset + local);
}

int64_t Case::group_rows(int64_t local) const {
  return group_sizes[static_cast<size_t>(group_offset + local)];
}

std::string to_string(const Case& c) {
  std::string out = text(name_of_op(c.op), " ", name_of(c.lhs));
  if (c.op != Op::kBiasGrad) out += text(" x ", name_of(c.rhs));
  out += text(" -> ", name_of(c.out));
  if (c.op == Op::kGroupedGemm) {
    out += " dims";
    for (const GemmDims& d : c.dims) out += text(" ", d.m, "x", d.k, "x", d.n);
  } else {
    out += text(" m=", c.m, " k=", c.k, " n=", c.n, " sizes");
    const size_t shown = c.group_sizes.size() > 16 ? 16 : c.group_sizes.size();
    for (size_t i = 0; i < shown; ++i) out += text(i ? "," : " ", c.group_sizes[i]);
    if (shown < c.group_sizes.size()) out += text(",... (", c.group_sizes.size(), ")");
    out += text(" ", name_of(c.sizes_dtype), c.ends ? " ends" : "");
    if (c.num_local_groups >= 0)
      out += text(", local ", c.num_local_groups, " from ", c.group_offset);
  }
  if (c.lhs_rows >= 0) out += text(", lhs rows ", name_of(c.rows_dtype), " of ", c.lhs_rows);
  if (c.rhs_rows >= 0) out += text(", rhs rows ", name_of(c.rows_dtype), " of ", c.rhs_rows);
  if (c.sizes_on_device) out += ", sizes on the device";
  if (c.transpose_lhs) out += ", transposed lhs";
  if (c.transpose_rhs) out += ", transposed rhs";
  if (c.alpha != Scalars::kDefault) out += c.alpha == Scalars::kUniform ? ", alpha" : ", alpha[g]";
  if (c.beta != Scalars::kDefault) out += c.beta == Scalars::kUniform ? ", beta" : ", beta[g]";
  if (c.accumulate) out += ", accumulate";
  if (c.c == COperand::kOutput) out += ", c = out";
  if (c.c == COperand::kSeparate) out += text(", c ", name_of(c.c_dtype));
  if (c.bias != Presence::kAbsent) out += text(", bias ", name_of(c.bias_dtype));
  if (c.bias == Presence::kList) out += " list";
  if (c.bias_scale) out += text(", bias_scale ", name_of(c.scale_dtype));
  if (c.row_scale) out += text(", row_scale ", name_of(c.scale_dtype));
  if (c.lhs_mode != ScaleMode::kNone) {
    out += text(", scales ", name_of(c.lhs_mode), " x ", name_of(c.rhs_mode));
    if (c.e8m0_scales) out += " e8m0";
    if (c.one_scale_for_all) out += " one for all";
    if (c.tensor_copies) out += " of copies";
    if (c.lhs_square_blocks) out += " square";
    if (c.nan_scales) out += " with NaN";
    if (c.scale_exponent != 0) out += text(" x 2^", c.scale_exponent);
    if (c.lhs_scales_layout.form == Placement::kList) out += " list";
  }
  if (c.activation.kind != ActivationKind::kNone) {
    out += text(", activation ", static_cast<int>(c.activation.kind));
    if (c.activation.layout == GateLayout::kInterleaved) out += " interleaved";
    if (c.preactivation) out += " with its input";
  }
  if (c.dbias_scale) out += ", dbias_scale";
  if (!c.dbias) out += ", no dbias";
  if (c.tail == Tail::kUntouched) out += ", tail untouched";
  if (c.tail == Tail::kForbid) out += ", tail forbidden";
  if (c.precision == Precision::kTf32) out += ", tf32";
  if (c.vector_stride != 1) out += text(", vector stride ", c.vector_stride);
  if (c.packed_weights) out += ", packed weights";
  if (!c.kernel.empty()) out += text(", kernel ", c.kernel);
  if (c.large_values) out += ", large values";
  if (c.nan_group >= 0) out += text(", nan in group ", c.nan_group);
  out += describe("lhs", c.lhs_layout) + describe("rhs", c.rhs_layout) +
         describe("out", c.out_layout) + describe("c", c.c_layout) +
         describe("bias", c.bias_layout) + describe("lhs.scales", c.lhs_scales_layout) +
         describe("rhs.scales", c.rhs_scales_layout);
  return out;
}

}  // namespace cadre::verify
