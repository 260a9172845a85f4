// The torch operators of cadre: schemas and kernels for CPU and CUDA. What Python adds to them
// (fake, autograd, vmap) is in bindings/python/cadre/torch.
#include <utility>

#include "bias_grad.h"
#include "grouped_gemm.h"
#include "grouped_view.h"
#include "moe_mlp.h"
#include "quantize.h"
#include "row_ops.h"
#include "scales_view.h"
#include "views.h"

namespace cadre_torch {
namespace {

/// Whether weights are one matrix for each group and not one stack.
bool is_list(const std::vector<Tensor>& weights) {
  return weights.size() != 1 || weights[0].dim() == 2;
}

/// What gmm's forms share besides lhs, rhs, bias and out.
struct GmmExtras {
  Groups groups;
  const OptionalTensor& alpha;
  const OptionalTensor& bias_scale;
  const OptionalTensor& row_scale;
  bool transpose_rhs;
  double alpha_value;
  int64_t tail;
  int64_t precision;
  const ScalesView& lhs_scales;
  const ScalesView& rhs_scales;
  bool fast_accumulation;
};

void run_gmm(const Tensor& lhs, const GroupedView& rhs, const GroupedView& bias,
             const GmmExtras& extras, const GroupedView& out, cadre_gmm_args& args) {
  const cadre_tensor lhs_view = view(lhs);
  const SizesView sizes("gmm", "group_sizes", extras.groups.sizes, kind_of(extras.groups));
  const OptionalView alpha(extras.alpha);
  const OptionalView bias_scale(extras.bias_scale);
  const OptionalView row_scale(extras.row_scale);
  args.lhs = &lhs_view;
  args.rhs = rhs.get();
  args.group_sizes = sizes.get();
  args.out = out.get();
  args.transpose_rhs = extras.transpose_rhs;
  args.tail = static_cast<int32_t>(extras.tail);
  args.alpha = extras.alpha_value;
  args.alpha_per_group = alpha.get();
  args.bias = bias.get();
  args.bias_scale = bias_scale.get();
  args.row_scale = row_scale.get();
  args.lhs_scales = extras.lhs_scales.get();
  args.rhs_scales = extras.rhs_scales.get();
  set_group_offset(args, "gmm", extras.groups);
  run(cadre_gmm, cadre_gmm_workspace_size, args, lhs, extras.precision, extras.fast_accumulation);
}

Tensor gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
           OptionalTensor bias, OptionalTensor bias_scale, OptionalTensor row_scale,
           OptionalTensor group_offset_tensor, int64_t group_offset, bool transpose_rhs,
           double alpha_value, int64_t tail, int64_t precision, OptionalTensor lhs_scales,
           int64_t lhs_mode, OptionalTensor rhs_scales, int64_t rhs_mode, bool fast_accumulation,
           std::optional<ScalarType> out_dtype) {
  expect_rank("gmm", "lhs", lhs, 2);
  expect_rank("gmm", "rhs", rhs, 3);
  if (bias) expect_vectors("gmm", "bias", *bias);
  const int64_t n = rhs.size(transpose_rhs ? 1 : 2);
  const ScalarType dtype = out_dtype ? *out_dtype : default_output("gmm", lhs, rhs);
  Tensor out = empty(lhs, {lhs.size(0), n}, dtype);
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  const GroupedView bias_view = bias ? GroupedView(*bias, kVectors) : GroupedView();
  run_gmm(lhs, GroupedView(rhs, kMatrices), bias_view,
          {{group_sizes, ends, group_offset_tensor, group_offset},
           alpha,
           bias_scale,
           row_scale,
           transpose_rhs,
           alpha_value,
           tail,
           precision,
           {lhs_scales, lhs_mode},
           {rhs_scales, rhs_mode},
           fast_accumulation},
          GroupedView(out, kMatrices), args);
  return out;
}

/// gmm with nothing but the product. Each argument of an operator costs a call time, so the common
/// one has few.
Tensor gmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, bool transpose_rhs) {
  constexpr std::nullopt_t kNone = std::nullopt;
  return gmm(std::move(lhs), std::move(rhs), std::move(group_sizes), ends, kNone, kNone, kNone,
             kNone, kNone, 0, transpose_rhs, 1.0, CADRE_TAIL_ZERO, CADRE_PRECISION_DEFAULT, kNone,
             CADRE_SCALE_NONE, kNone, CADRE_SCALE_NONE, false, kNone);
}

Tensor gmm_list(Tensor lhs, std::vector<Tensor> rhs, Tensor group_sizes, bool ends,
                OptionalTensor alpha, std::vector<Tensor> bias, OptionalTensor bias_scale,
                OptionalTensor row_scale, OptionalTensor group_offset_tensor, int64_t group_offset,
                bool transpose_rhs, double alpha_value, int64_t tail, int64_t precision,
                OptionalTensor lhs_scales, int64_t lhs_mode, std::vector<Tensor> rhs_scales,
                int64_t rhs_mode, bool fast_accumulation, std::optional<ScalarType> out_dtype) {
  expect_rank("gmm", "lhs", lhs, 2);
  if (rhs.empty()) fail(CADRE_INVALID, "gmm: len(rhs) = 0, expected at least 1");
  const GroupedView rhs_view("gmm", "rhs", rhs, kMatrices);
  const int64_t n = transpose_rhs ? (*rhs_view).rows.uniform : (*rhs_view).cols.uniform;
  const ScalarType dtype = out_dtype ? *out_dtype : default_output("gmm", lhs, rhs[0]);
  Tensor out = empty(lhs, {lhs.size(0), n}, dtype);
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  run_gmm(lhs, rhs_view, GroupedView("gmm", "bias", bias, kVectors),
          {{group_sizes, ends, group_offset_tensor, group_offset},
           alpha,
           bias_scale,
           row_scale,
           transpose_rhs,
           alpha_value,
           tail,
           precision,
           {lhs_scales, lhs_mode},
           {"gmm", "rhs.scales", rhs_scales, rhs_mode, is_list(rhs)},
           fast_accumulation},
          GroupedView(out, kMatrices), args);
  return out;
}

/// gmm's out or c: the rows of all groups in one tensor, or a list of those of each.
GroupedView rows_or_list(const char* argument, const std::vector<Tensor>& tensors, bool is_list,
                         const LocalRows& rows) {
  if (is_list || tensors.empty()) return GroupedView::results("gmm", argument, tensors, rows);
  expect_rank("gmm", argument, tensors[0], 2);
  return GroupedView(tensors[0], kMatrices);
}

void gmm_out(Tensor lhs, std::vector<Tensor> rhs, Tensor group_sizes, bool ends,
             OptionalTensor alpha, std::vector<Tensor> bias, OptionalTensor bias_scale,
             OptionalTensor row_scale, OptionalTensor group_offset_tensor, int64_t group_offset,
             bool transpose_rhs, double alpha_value, int64_t tail, int64_t precision,
             OptionalTensor lhs_scales, int64_t lhs_mode, std::vector<Tensor> rhs_scales,
             int64_t rhs_mode, bool fast_accumulation, std::vector<Tensor> c, OptionalTensor beta,
             double beta_value, bool c_is_list, bool out_is_list, std::vector<Tensor> out) {
  cadre_gmm_args args;
  cadre_gmm_args_init(&args, sizeof(args));
  const Groups groups{group_sizes, ends, group_offset_tensor, group_offset};
  const LocalRows rows(groups);
  const GroupedView c_view = rows_or_list("c", c, c_is_list, rows);
  const OptionalView beta_view(beta);
  args.c = c_view.get();
  args.beta = beta_value;
  args.beta_per_group = beta_view.get();
  run_gmm(lhs, GroupedView("gmm", "rhs", rhs, kMatrices),
          GroupedView("gmm", "bias", bias, kVectors),
          {groups,
           alpha,
           bias_scale,
           row_scale,
           transpose_rhs,
           alpha_value,
           tail,
           precision,
           {lhs_scales, lhs_mode},
           {"gmm", "rhs.scales", rhs_scales, rhs_mode, is_list(rhs)},
           fast_accumulation},
          rows_or_list("out", out, out_is_list, rows), args);
}

/// One FP8 operand of tgmm.
struct TgmmScales {
  const OptionalTensor& scales;
  int64_t mode;
  bool columns;
};

struct TgmmExtras {
  Groups groups;
  const OptionalTensor& alpha;
  double alpha_value;
  int64_t precision;
  TgmmScales lhs;
  TgmmScales rhs;
  bool fast_accumulation;
};

void run_tgmm(const Tensor& lhs, const Tensor& rhs, const TgmmExtras& extras,
              const GroupedView& out, cadre_tgmm_args& args) {
  const cadre_tensor lhs_view = view(lhs);
  const cadre_tensor rhs_view = view(rhs);
  const SizesView sizes("tgmm", "group_sizes", extras.groups.sizes, kind_of(extras.groups));
  const OptionalView alpha(extras.alpha);
  args.lhs = &lhs_view;
  args.rhs = &rhs_view;
  args.group_sizes = sizes.get();
  args.out = out.get();
  args.alpha = extras.alpha_value;
  args.alpha_per_group = alpha.get();
  const ScalesView lhs_scales(extras.lhs.scales, extras.lhs.mode);
  const ScalesView rhs_scales(extras.rhs.scales, extras.rhs.mode);
  args.lhs_scales = lhs_scales.get();
  args.rhs_scales = rhs_scales.get();
  args.lhs_columns = extras.lhs.columns;
  args.rhs_columns = extras.rhs.columns;
  set_group_offset(args, "tgmm", extras.groups);
  run(cadre_tgmm, cadre_tgmm_workspace_size, args, lhs, extras.precision, extras.fast_accumulation);
}

Tensor tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
            OptionalTensor group_offset_tensor, int64_t group_offset, int64_t num_groups,
            double alpha_value, int64_t precision, OptionalTensor lhs_scales, int64_t lhs_mode,
            bool lhs_columns, OptionalTensor rhs_scales, int64_t rhs_mode, bool rhs_columns,
            bool fast_accumulation, std::optional<ScalarType> out_dtype) {
  expect_rank("tgmm", "lhs", lhs, 2);
  expect_rank("tgmm", "rhs", rhs, 2);
  expect_groups("tgmm", num_groups);
  const ScalarType dtype = out_dtype ? *out_dtype : default_output("tgmm", lhs, rhs);
  Tensor out =
      empty(lhs, {num_groups, lhs.size(lhs_columns ? 0 : 1), rhs.size(rhs_columns ? 0 : 1)}, dtype);
  cadre_tgmm_args args;
  cadre_tgmm_args_init(&args, sizeof(args));
  run_tgmm(lhs, rhs,
           {{group_sizes, ends, group_offset_tensor, group_offset},
            alpha,
            alpha_value,
            precision,
            {lhs_scales, lhs_mode, lhs_columns},
            {rhs_scales, rhs_mode, rhs_columns},
            fast_accumulation},
           GroupedView(out, kMatrices), args);
  return out;
}

/// tgmm with nothing but the product, see gmm_plain.
Tensor tgmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, int64_t num_groups) {
  return tgmm(std::move(lhs), std::move(rhs), std::move(group_sizes), ends, std::nullopt,
              std::nullopt, 0, num_groups, 1.0, CADRE_PRECISION_DEFAULT, std::nullopt,
              CADRE_SCALE_NONE, false, std::nullopt, CADRE_SCALE_NONE, false, false, std::nullopt);
}

void tgmm_out(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
              OptionalTensor group_offset_tensor, int64_t group_offset, double alpha_value,
              int64_t precision, OptionalTensor lhs_scales, int64_t lhs_mode, bool lhs_columns,
              OptionalTensor rhs_scales, int64_t rhs_mode, bool rhs_columns, bool fast_accumulation,
              std::vector<Tensor> c, OptionalTensor beta, double beta_value,
              std::vector<Tensor> out) {
  cadre_tgmm_args args;
  cadre_tgmm_args_init(&args, sizeof(args));
  const GroupedView c_view("tgmm", "c", c, kMatrices);
  const OptionalView beta_view(beta);
  args.c = c_view.get();
  args.beta = beta_value;
  args.beta_per_group = beta_view.get();
  run_tgmm(lhs, rhs,
           {{group_sizes, ends, group_offset_tensor, group_offset},
            alpha,
            alpha_value,
            precision,
            {lhs_scales, lhs_mode, lhs_columns},
            {rhs_scales, rhs_mode, rhs_columns},
            fast_accumulation},
           GroupedView("tgmm", "out", out, kMatrices), args);
}

void check_device(Tensor like) {
  void* stream = like.is_cuda() ? current_stream(like.get_device_index()) : nullptr;
  check(cadre_check(g_context, device_of(like), stream));
}

}  // namespace
}  // namespace cadre_torch

extern "C" __attribute__((visibility("default"))) void cadre_torch_set_context(void* context) {
  cadre_torch::g_context = static_cast<cadre_context*>(context);
}

// No argument has a default: the dispatcher would strip those that equal it, and with them their
// place among the inputs that autograd counts.
STABLE_TORCH_LIBRARY(cadre, m) {
  m.def(
      "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, Tensor? alpha, Tensor? bias, "
      "Tensor? bias_scale, Tensor? row_scale, Tensor? group_offset_tensor, "
      "int group_offset, bool transpose_rhs, float alpha_value, int tail, "
      "int precision, Tensor? lhs_scales, int lhs_mode, Tensor? rhs_scales, int rhs_mode, "
      "bool fast_accumulation, ScalarType? out_dtype) -> Tensor");
  m.def(
      "gmm_list(Tensor lhs, Tensor[] rhs, Tensor group_sizes, bool ends, Tensor? alpha, Tensor[] "
      "bias, "
      "Tensor? bias_scale, Tensor? row_scale, Tensor? group_offset_tensor, "
      "int group_offset, bool transpose_rhs, float alpha_value, int tail, "
      "int precision, Tensor? lhs_scales, int lhs_mode, Tensor[] rhs_scales, int rhs_mode, "
      "bool fast_accumulation, ScalarType? out_dtype) -> Tensor");
  m.def(
      "gmm_out(Tensor lhs, Tensor[] rhs, Tensor group_sizes, bool ends, Tensor? alpha, Tensor[] "
      "bias, "
      "Tensor? bias_scale, Tensor? row_scale, Tensor? group_offset_tensor, int group_offset, "
      "bool transpose_rhs, float alpha_value, int tail, int precision, Tensor? lhs_scales, "
      "int lhs_mode, Tensor[] rhs_scales, int rhs_mode, bool fast_accumulation, Tensor[] c, "
      "Tensor? beta, float beta_value, bool c_is_list, bool out_is_list, Tensor(a!)[] out) -> ()");
  m.def(
      "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, Tensor? alpha, "
      "Tensor? group_offset_tensor, int group_offset, SymInt num_groups, float alpha_value, "
      "int precision, Tensor? lhs_scales, int lhs_mode, bool lhs_columns, Tensor? rhs_scales, "
      "int rhs_mode, bool rhs_columns, bool fast_accumulation, ScalarType? out_dtype) -> Tensor");
  m.def(
      "tgmm_out(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, Tensor? alpha, "
      "Tensor? group_offset_tensor, int group_offset, float alpha_value, int precision, "
      "Tensor? lhs_scales, int lhs_mode, bool lhs_columns, Tensor? rhs_scales, int rhs_mode, "
      "bool rhs_columns, bool fast_accumulation, Tensor[] c, Tensor? beta, float beta_value, "
      "Tensor(a!)[] out) -> ()");
  m.def(
      "gmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, bool transpose_rhs) -> "
      "Tensor");
  m.def(
      "tgmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, SymInt num_groups) -> "
      "Tensor");
  m.def("check(Tensor like) -> ()");
  for (const char* schema : cadre_torch::kBiasGradSchemas) m.def(schema);
  m.def(cadre_torch::kGroupedGemmSchema);
  m.def(cadre_torch::kGroupedGemmOutSchema);
  for (const char* schema : cadre_torch::kRowOpSchemas) m.def(schema);
  for (const char* schema : cadre_torch::kQuantizeSchemas) m.def(schema);
  m.def(cadre_torch::kMoeMlpSchema);
  m.def(cadre_torch::kMoeMlpGradSchema);
  m.def(cadre_torch::kMoeMlpGradIntoSchema);
}

#define CADRE_TORCH_KERNELS(m)                                                       \
  m.impl("gmm", TORCH_BOX(&cadre_torch::gmm));                                       \
  m.impl("gmm_plain", TORCH_BOX(&cadre_torch::gmm_plain));                           \
  m.impl("gmm_list", TORCH_BOX(&cadre_torch::gmm_list));                             \
  m.impl("gmm_out", TORCH_BOX(&cadre_torch::gmm_out));                               \
  m.impl("tgmm", TORCH_BOX(&cadre_torch::tgmm));                                     \
  m.impl("tgmm_plain", TORCH_BOX(&cadre_torch::tgmm_plain));                         \
  m.impl("tgmm_out", TORCH_BOX(&cadre_torch::tgmm_out));                             \
  m.impl("bias_grad", TORCH_BOX(&cadre_torch::bias_grad));                           \
  m.impl("bias_grad_out", TORCH_BOX(&cadre_torch::bias_grad_out));                   \
  m.impl("bias_scale_grad", TORCH_BOX(&cadre_torch::bias_scale_grad));               \
  m.impl("quantize", TORCH_BOX(&cadre_torch::quantize));                             \
  m.impl("dequantize", TORCH_BOX(&cadre_torch::dequantize));                         \
  m.impl("amax", TORCH_BOX(&cadre_torch::amax));                                     \
  m.impl("weighted_activate_grad", TORCH_BOX(&cadre_torch::weighted_activate_grad)); \
  m.impl("check", TORCH_BOX(&cadre_torch::check_device));                            \
  m.impl("select_experts", TORCH_BOX(&cadre_torch::select_experts));                 \
  m.impl("select_experts_grad", TORCH_BOX(&cadre_torch::select_experts_grad));       \
  m.impl("route", TORCH_BOX(&cadre_torch::route));                                   \
  m.impl("permute", TORCH_BOX(&cadre_torch::permute));                               \
  m.impl("combine", TORCH_BOX(&cadre_torch::combine));                               \
  m.impl("combine_grad", TORCH_BOX(&cadre_torch::combine_grad));                     \
  m.impl("moe_mlp", TORCH_BOX(&cadre_torch::moe_mlp));                               \
  m.impl("moe_mlp_grad", TORCH_BOX(&cadre_torch::moe_mlp_grad));                     \
  m.impl("moe_mlp_grad_into", TORCH_BOX(&cadre_torch::moe_mlp_grad_into));           \
  m.impl("grouped_gemm", TORCH_BOX(&cadre_torch::grouped_gemm));                     \
  m.impl("grouped_gemm_out", TORCH_BOX(&cadre_torch::grouped_gemm_out))

STABLE_TORCH_LIBRARY_IMPL(cadre, CPU, m) { CADRE_TORCH_KERNELS(m); }
STABLE_TORCH_LIBRARY_IMPL(cadre, CUDA, m) { CADRE_TORCH_KERNELS(m); }
