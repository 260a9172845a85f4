// See case_call.h.
#include "verify/case_call.h"

#include <algorithm>

#include "backend/registry.h"
#include "ops/problem_of.h"

namespace cadre::verify {
namespace {

int64_t most_rows(const Case& c) {
  int64_t most = 0;
  for (int64_t i = 0; i < c.local_groups(); ++i) most = std::max(most, c.group_rows(i));
  return most;
}

GroupScalars scalars(double uniform, const std::optional<PlacedTensor>& values) {
  return values ? GroupScalars(values->vector_view()) : GroupScalars(uniform);
}

GroupOffset offset_of(const Case& c, const CaseData& data) {
  if (!data.offset) return c.group_offset;
  const GroupSizes value = data.offset->sizes();
  if (value.device.kind == DeviceKind::kCpu) return c.group_offset;
  return {value.data, value.dtype, value.device};
}

TensorView view(const std::optional<IndexMatrix>& index) {
  return index ? index->vector_view() : TensorView{};
}

TensorView view(const std::optional<PlacedTensor>& tensor) {
  return tensor ? tensor->vector_view() : TensorView{};
}

GroupedTensor bias_of(const CaseData& data) {
  return data.bias ? data.bias->tensor() : GroupedTensor{};
}

Scales scales_of(const std::optional<ScaleData>& scales) {
  return scales ? scales->scales() : Scales{};
}

ScaledTensor rows_of(const PlacedTensor& tensor, const std::optional<ScaleData>& scales,
                     const std::vector<int64_t>& columns) {
  ScaledTensor rows(tensor.matrix_view(), scales_of(scales));
  rows.columns = !columns.empty();
  return rows;
}

/// What the products share.
struct Factors {
  Factors(const Case& c, const CaseData& data)
      : alpha(scalars(data.alpha, data.alpha_values)),
        beta(scalars(c.accumulate ? 0.0 : data.beta, data.beta_values)) {
    const int64_t max_rows = c.op == Op::kGmm ? most_rows(c) : -1;
    if (c.c == COperand::kOutput) c_tensor = data.out->tensor(max_rows);
    if (c.c == COperand::kSeparate) c_tensor = data.c->tensor(max_rows);
  }

  GroupScalars alpha;
  GroupScalars beta;
  GroupedTensor c_tensor;
};

CallOptions options_of(const Case& c) {
  CallOptions options;
  options.precision = c.precision;
  if (!c.kernel.empty()) options.config = c.kernel.c_str();
  return options;
}

GmmArgs gmm_args(const Case& c, const CaseData& data) {
  const Factors factors(c, data);
  return {.lhs = rows_of(*data.lhs, data.lhs_scales, {}),
          .rhs = {data.rhs->tensor(), scales_of(data.rhs_scales)},
          .group_sizes = data.sizes->sizes(),
          .out = data.out->tensor(most_rows(c)),
          .lhs_rows = view(data.lhs_index),
          .transpose_rhs = c.transpose_rhs,
          .alpha = factors.alpha,
          .beta = factors.beta,
          .accumulate = c.accumulate,
          .c = factors.c_tensor,
          .bias = bias_of(data),
          .bias_scale = view(data.bias_scale),
          .row_scale = view(data.row_scale),
          .activation = c.activation,
          .preactivation = data.preactivation ? data.preactivation->matrix_view() : TensorView{},
          .tail = c.tail,
          .group_offset = offset_of(c, data),
          .options = options_of(c)};
}

TgmmArgs tgmm_args(const Case& c, const CaseData& data) {
  const Factors factors(c, data);
  return {.lhs = rows_of(*data.lhs, data.lhs_scales, data.lhs_columns),
          .rhs = rows_of(*data.rhs, data.rhs_scales, data.rhs_columns),
          .group_sizes = data.sizes->sizes(),
          .out = data.out->tensor(),
          .lhs_rows = view(data.lhs_index),
          .rhs_rows = view(data.rhs_index),
          .alpha = factors.alpha,
          .beta = factors.beta,
          .accumulate = c.accumulate,
          .c = factors.c_tensor,
          .group_offset = offset_of(c, data),
          .options = options_of(c)};
}

GroupedGemmArgs grouped_gemm_args(const Case& c, const CaseData& data) {
  const Factors factors(c, data);
  return {.a = {data.lhs->tensor(), scales_of(data.lhs_scales)},
          .b = {data.rhs->tensor(), scales_of(data.rhs_scales)},
          .c = factors.c_tensor,
          .d = data.out->tensor(),
          .transa = c.transpose_lhs,
          .transb = c.transpose_rhs,
          .alpha = factors.alpha,
          .beta = factors.beta,
          .accumulate = c.accumulate,
          .options = options_of(c)};
}

BiasGradArgs bias_grad_args(const Case& c, const CaseData& data) {
  return {.dy = data.lhs->matrix_view(),
          .group_sizes = data.sizes->sizes(),
          .dbias = data.out ? data.out->tensor() : GroupedTensor{},
          .dbias_scale = view(data.dbias_scale),
          .bias = bias_of(data),
          .bias_scale = view(data.bias_scale),
          .accumulate = c.accumulate,
          .group_offset = offset_of(c, data),
          .options = options_of(c)};
}

Status call_gmm(Context& context, const Case& c, const CaseData& data) {
  GmmArgs args = gmm_args(c, data);
  PackedWeights packed;
  if (c.packed_weights && args.rhs.device.kind == DeviceKind::kCpu) {
    const PackWeightsArgs weights{
        .rhs = args.rhs, .transpose_rhs = c.transpose_rhs, .lhs_dtype = c.lhs, .out_dtype = c.out};
    if (Status status = pack_weights(context, weights, &packed); !status.ok()) return status;
    if (!packed.empty()) args.packed_rhs = &packed;
  }
  return gmm(context, args);
}

}  // namespace

Status call(Context& context, const Case& c, const CaseData& data) {
  switch (c.op) {
    case Op::kGmm:
      return call_gmm(context, c, data);
    case Op::kTgmm:
      return tgmm(context, tgmm_args(c, data));
    case Op::kGroupedGemm:
      return grouped_gemm(context, grouped_gemm_args(c, data));
    case Op::kBiasGrad:
      return bias_grad(context, bias_grad_args(c, data));
  }
  return Status::internal("unknown op");
}

Status kernel_of(Context& context, const Case& c, const CaseData& data, std::string* kernel) {
  plan::Problem problem;
  const auto pose = [&] {
    switch (c.op) {
      case Op::kGmm:
        return ops::problem_of(gmm_args(c, data), &problem);
      case Op::kTgmm:
        return ops::problem_of(tgmm_args(c, data), &problem);
      default:
        return ops::problem_of(grouped_gemm_args(c, data), &problem);
    }
  };
  const Status status = pose();
  if (!status.ok()) return status;
  backend::Selection selection;
  const Status chosen = backend::Registry::instance().select(context.state(), problem,
                                                             options_of(c).config, &selection);
  *kernel = selection.config.kernel;
  return chosen;
}

}  // namespace cadre::verify
