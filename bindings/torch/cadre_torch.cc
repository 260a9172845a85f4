// The torch operators of cadre: schemas and kernels for CPU and CUDA. What Python adds to them
// (fake, autograd, vmap) is in bindings/python/cadre/torch.
#include <utility>

#include "grouped_gemm.h"
#include "grouped_view.h"
#include "moe_mlp.h"
#include "row_ops.h"
#include "views.h"

namespace cadre_torch {
namespace {

constexpr auto kMatrices = GroupedView::Form::kMatrices;
constexpr auto kVectors = GroupedView::Form::kVectors;

cadre_sizes_kind kind_of(const Groups& groups) { return groups.ends ? CADRE_ENDS : CADRE_SIZES; }

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
  set_group_offset(args, "gmm", extras.groups);
  run(cadre_gmm, cadre_gmm_workspace_size, args, lhs, extras.precision);
}

Tensor gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
           OptionalTensor bias, OptionalTensor bias_scale, OptionalTensor row_scale,
           OptionalTensor group_offset_tensor, int64_t group_offset, bool transpose_rhs,
           double alpha_value, int64_t tail, int64_t precision,
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
           precision},
          GroupedView(out, kMatrices), args);
  return out;
}

/// gmm with nothing but the product. Each argument of an operator costs a call time, so the common
/// one has few.
Tensor gmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, bool transpose_rhs) {
  constexpr std::nullopt_t kNone = std::nullopt;
  return gmm(std::move(lhs), std::move(rhs), std::move(group_sizes), ends, kNone, kNone, kNone,
             kNone, kNone, 0, transpose_rhs, 1.0, CADRE_TAIL_ZERO, CADRE_PRECISION_DEFAULT, kNone);
}

Tensor gmm_list(Tensor lhs, std::vector<Tensor> rhs, Tensor group_sizes, bool ends,
                OptionalTensor alpha, std::vector<Tensor> bias, OptionalTensor bias_scale,
                OptionalTensor row_scale, OptionalTensor group_offset_tensor, int64_t group_offset,
                bool transpose_rhs, double alpha_value, int64_t tail, int64_t precision,
                std::optional<ScalarType> out_dtype) {
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
           precision},
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
             std::vector<Tensor> c, OptionalTensor beta, double beta_value, bool c_is_list,
             bool out_is_list, std::vector<Tensor> out) {
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
          {groups, alpha, bias_scale, row_scale, transpose_rhs, alpha_value, tail, precision},
          rows_or_list("out", out, out_is_list, rows), args);
}

struct TgmmExtras {
  Groups groups;
  const OptionalTensor& alpha;
  double alpha_value;
  int64_t precision;
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
  set_group_offset(args, "tgmm", extras.groups);
  run(cadre_tgmm, cadre_tgmm_workspace_size, args, lhs, extras.precision);
}

Tensor tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
            OptionalTensor group_offset_tensor, int64_t group_offset, int64_t num_groups,
            double alpha_value, int64_t precision, std::optional<ScalarType> out_dtype) {
  expect_rank("tgmm", "lhs", lhs, 2);
  expect_rank("tgmm", "rhs", rhs, 2);
  expect_groups("tgmm", num_groups);
  const ScalarType dtype = out_dtype ? *out_dtype : default_output("tgmm", lhs, rhs);
  Tensor out = empty(lhs, {num_groups, lhs.size(1), rhs.size(1)}, dtype);
  cadre_tgmm_args args;
  cadre_tgmm_args_init(&args, sizeof(args));
  run_tgmm(lhs, rhs,
           {{group_sizes, ends, group_offset_tensor, group_offset}, alpha, alpha_value, precision},
           GroupedView(out, kMatrices), args);
  return out;
}

/// tgmm with nothing but the product, see gmm_plain.
Tensor tgmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, int64_t num_groups) {
  return tgmm(std::move(lhs), std::move(rhs), std::move(group_sizes), ends, std::nullopt,
              std::nullopt, 0, num_groups, 1.0, CADRE_PRECISION_DEFAULT, std::nullopt);
}

void tgmm_out(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, OptionalTensor alpha,
              OptionalTensor group_offset_tensor, int64_t group_offset, double alpha_value,
              int64_t precision, std::vector<Tensor> c, OptionalTensor beta, double beta_value,
              std::vector<Tensor> out) {
  cadre_tgmm_args args;
  cadre_tgmm_args_init(&args, sizeof(args));
  const GroupedView c_view("tgmm", "c", c, kMatrices);
  const OptionalView beta_view(beta);
  args.c = c_view.get();
  args.beta = beta_value;
  args.beta_per_group = beta_view.get();
  run_tgmm(lhs, rhs,
           {{group_sizes, ends, group_offset_tensor, group_offset}, alpha, alpha_value, precision},
           GroupedView("tgmm", "out", out, kMatrices), args);
}

void run_bias_grad(const Tensor& dy, const Groups& groups, cadre_bias_grad_args& args) {
  const cadre_tensor dy_view = view(dy);
  const SizesView sizes("bias_grad", "group_sizes", groups.sizes, kind_of(groups));
  args.dy = &dy_view;
  args.group_sizes = sizes.get();
  set_group_offset(args, "bias_grad", groups);
  run(cadre_bias_grad, cadre_bias_grad_workspace_size, args, dy, CADRE_PRECISION_DEFAULT);
}

Tensor bias_grad(Tensor dy, Tensor group_sizes, bool ends, OptionalTensor bias_scale,
                 OptionalTensor group_offset_tensor, int64_t group_offset, int64_t num_groups,
                 std::optional<ScalarType> out_dtype) {
  expect_rank("bias_grad", "dy", dy, 2);
  expect_groups("bias_grad", num_groups);
  Tensor out = empty(dy, {num_groups, dy.size(1)}, out_dtype ? *out_dtype : dy.scalar_type());
  cadre_bias_grad_args args;
  cadre_bias_grad_args_init(&args, sizeof(args));
  const GroupedView dbias(out, kVectors);
  const OptionalView scale(bias_scale);
  args.dbias = dbias.get();
  args.bias_scale = scale.get();
  run_bias_grad(dy, {group_sizes, ends, group_offset_tensor, group_offset}, args);
  return out;
}

void bias_grad_out(Tensor dy, Tensor group_sizes, bool ends, OptionalTensor bias_scale,
                   OptionalTensor group_offset_tensor, int64_t group_offset, bool accumulate,
                   std::vector<Tensor> out) {
  cadre_bias_grad_args args;
  cadre_bias_grad_args_init(&args, sizeof(args));
  const GroupedView dbias("bias_grad", "out", out, kVectors);
  const OptionalView scale(bias_scale);
  args.dbias = dbias.get();
  args.bias_scale = scale.get();
  args.accumulate = accumulate;
  run_bias_grad(dy, {group_sizes, ends, group_offset_tensor, group_offset}, args);
}

Tensor bias_scale_grad(Tensor dy, std::vector<Tensor> bias, Tensor group_sizes, bool ends,
                       OptionalTensor group_offset_tensor, int64_t group_offset,
                       std::optional<ScalarType> out_dtype) {
  expect_rank("bias_grad", "dy", dy, 2);
  Tensor out = empty(dy, {dy.size(0)}, out_dtype ? *out_dtype : dy.scalar_type());
  cadre_bias_grad_args args;
  cadre_bias_grad_args_init(&args, sizeof(args));
  const cadre_tensor out_view = view(out);
  const GroupedView bias_view("bias_grad", "bias", bias, kVectors);
  args.dbias_scale = &out_view;
  args.bias = bias_view.get();
  run_bias_grad(dy, {group_sizes, ends, group_offset_tensor, group_offset}, args);
  return out;
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
      "int precision, ScalarType? out_dtype) -> Tensor");
  m.def(
      "gmm_list(Tensor lhs, Tensor[] rhs, Tensor group_sizes, bool ends, Tensor? alpha, Tensor[] "
      "bias, "
      "Tensor? bias_scale, Tensor? row_scale, Tensor? group_offset_tensor, "
      "int group_offset, bool transpose_rhs, float alpha_value, int tail, "
      "int precision, ScalarType? out_dtype) -> Tensor");
  m.def(
      "gmm_out(Tensor lhs, Tensor[] rhs, Tensor group_sizes, bool ends, Tensor? alpha, Tensor[] "
      "bias, "
      "Tensor? bias_scale, Tensor? row_scale, Tensor? group_offset_tensor, int group_offset, "
      "bool transpose_rhs, float alpha_value, int tail, int precision, Tensor[] c, Tensor? beta, "
      "float beta_value, bool c_is_list, bool out_is_list, Tensor(a!)[] out) -> ()");
  m.def(
      "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, Tensor? alpha, "
      "Tensor? group_offset_tensor, int group_offset, SymInt num_groups, float alpha_value, "
      "int precision, ScalarType? out_dtype) -> Tensor");
  m.def(
      "tgmm_out(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, Tensor? alpha, "
      "Tensor? group_offset_tensor, int group_offset, float alpha_value, int precision, "
      "Tensor[] c, Tensor? beta, float beta_value, Tensor(a!)[] out) -> ()");
  m.def(
      "bias_grad(Tensor dy, Tensor group_sizes, bool ends, Tensor? bias_scale, Tensor? "
      "group_offset_tensor, "
      "int group_offset, SymInt num_groups, ScalarType? out_dtype) -> Tensor");
  m.def(
      "bias_grad_out(Tensor dy, Tensor group_sizes, bool ends, Tensor? bias_scale, "
      "Tensor? group_offset_tensor, int group_offset, bool accumulate, Tensor(a!)[] out) -> ()");
  m.def(
      "bias_scale_grad(Tensor dy, Tensor[] bias, Tensor group_sizes, bool ends, Tensor? "
      "group_offset_tensor, "
      "int group_offset, ScalarType? out_dtype) -> Tensor");
  m.def(
      "gmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, bool transpose_rhs) -> "
      "Tensor");
  m.def(
      "tgmm_plain(Tensor lhs, Tensor rhs, Tensor group_sizes, bool ends, SymInt num_groups) -> "
      "Tensor");
  m.def("check(Tensor like) -> ()");
  m.def(cadre_torch::kGroupedGemmSchema);
  m.def(cadre_torch::kGroupedGemmOutSchema);
  for (const char* schema : cadre_torch::kRowOpSchemas) m.def(schema);
  m.def(cadre_torch::kMoeMlpSchema);
  m.def(cadre_torch::kMoeMlpGradSchema);
  m.def(cadre_torch::kMoeMlpGradIntoSchema);
}

#define CADRE_TORCH_KERNELS(m)                                                 \
  m.impl("gmm", TORCH_BOX(&cadre_torch::gmm));                                 \
  m.impl("gmm_plain", TORCH_BOX(&cadre_torch::gmm_plain));                     \
  m.impl("gmm_list", TORCH_BOX(&cadre_torch::gmm_list));                       \
  m.impl("gmm_out", TORCH_BOX(&cadre_torch::gmm_out));                         \
  m.impl("tgmm", TORCH_BOX(&cadre_torch::tgmm));                               \
  m.impl("tgmm_plain", TORCH_BOX(&cadre_torch::tgmm_plain));                   \
  m.impl("tgmm_out", TORCH_BOX(&cadre_torch::tgmm_out));                       \
  m.impl("bias_grad", TORCH_BOX(&cadre_torch::bias_grad));                     \
  m.impl("bias_grad_out", TORCH_BOX(&cadre_torch::bias_grad_out));             \
  m.impl("bias_scale_grad", TORCH_BOX(&cadre_torch::bias_scale_grad));         \
  m.impl("check", TORCH_BOX(&cadre_torch::check_device));                      \
  m.impl("select_experts", TORCH_BOX(&cadre_torch::select_experts));           \
  m.impl("select_experts_grad", TORCH_BOX(&cadre_torch::select_experts_grad)); \
  m.impl("route", TORCH_BOX(&cadre_torch::route));                             \
  m.impl("permute", TORCH_BOX(&cadre_torch::permute));                         \
  m.impl("combine", TORCH_BOX(&cadre_torch::combine));                         \
  m.impl("combine_grad", TORCH_BOX(&cadre_torch::combine_grad));               \
  m.impl("moe_mlp", TORCH_BOX(&cadre_torch::moe_mlp));                         \
  m.impl("moe_mlp_grad", TORCH_BOX(&cadre_torch::moe_mlp_grad));               \
  m.impl("moe_mlp_grad_into", TORCH_BOX(&cadre_torch::moe_mlp_grad_into));     \
  m.impl("grouped_gemm", TORCH_BOX(&cadre_torch::grouped_gemm));               \
  m.impl("grouped_gemm_out", TORCH_BOX(&cadre_torch::grouped_gemm_out))

STABLE_TORCH_LIBRARY_IMPL(cadre, CPU, m) { CADRE_TORCH_KERNELS(m); }
STABLE_TORCH_LIBRARY_IMPL(cadre, CUDA, m) { CADRE_TORCH_KERNELS(m); }
