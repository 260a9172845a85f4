// bias_grad for torch: the gradients of gmm's bias and bias_scale.
#pragma once

#include "grouped_view.h"

namespace cadre_torch {

constexpr const char* kBiasGradSchemas[] = {
    "bias_grad(Tensor dy, Tensor group_sizes, bool ends, Tensor? bias_scale, "
    "Tensor? group_offset_tensor, int group_offset, SymInt num_groups, ScalarType? out_dtype) -> "
    "Tensor",
    "bias_grad_out(Tensor dy, Tensor group_sizes, bool ends, Tensor? bias_scale, "
    "Tensor? group_offset_tensor, int group_offset, bool accumulate, Tensor(a!)[] out) -> ()",
    "bias_scale_grad(Tensor dy, Tensor[] bias, Tensor group_sizes, bool ends, "
    "Tensor? group_offset_tensor, int group_offset, ScalarType? out_dtype) -> Tensor",
};

inline void run_bias_grad(const Tensor& dy, const Groups& groups, cadre_bias_grad_args& args) {
  const cadre_tensor dy_view = view(dy);
  const SizesView sizes("bias_grad", "group_sizes", groups.sizes, kind_of(groups));
  args.dy = &dy_view;
  args.group_sizes = sizes.get();
  set_group_offset(args, "bias_grad", groups);
  run(cadre_bias_grad, cadre_bias_grad_workspace_size, args, dy, CADRE_PRECISION_DEFAULT);
}

inline Tensor bias_grad(Tensor dy, Tensor group_sizes, bool ends, OptionalTensor bias_scale,
                        OptionalTensor group_offset_tensor, int64_t group_offset,
                        int64_t num_groups, std::optional<ScalarType> out_dtype) {
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

inline void bias_grad_out(Tensor dy, Tensor group_sizes, bool ends, OptionalTensor bias_scale,
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

inline Tensor bias_scale_grad(Tensor dy, std::vector<Tensor> bias, Tensor group_sizes, bool ends,
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

}  // namespace cadre_torch
