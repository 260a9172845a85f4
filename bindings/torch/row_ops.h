// The ops around the products for torch: select_experts, route, permute, combine and their
// gradients. Each takes dense tensors and makes its results.
#pragma once

#include <tuple>

#include "views.h"

namespace cadre_torch {

constexpr const char* kRowOpSchemas[] = {
    "select_experts(Tensor logits, Tensor? correction_bias, SymInt top_k, int score, "
    "bool normalize, float scale, int num_groups, int top_groups, int group_score, "
    "ScalarType ids_dtype, ScalarType? out_dtype) -> (Tensor, Tensor)",
    "select_experts_grad(Tensor logits, Tensor expert_ids, Tensor dweights, int score, "
    "bool normalize, float scale) -> Tensor",
    "route(Tensor expert_ids, SymInt num_experts, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    "permute(Tensor x, Tensor source_row, Tensor? slot_row) -> Tensor",
    "combine(Tensor y, Tensor slot_row, Tensor? source_row, Tensor? weights, Tensor? shared, "
    "Tensor? residual, ScalarType? out_dtype) -> Tensor",
    "combine_grad(Tensor dout, Tensor slot_row, Tensor? source_row, Tensor? weights, Tensor? y, "
    "ScalarType? dy_dtype, ScalarType? dweights_dtype) -> Tensor[]",
};

inline std::tuple<Tensor, Tensor> select_experts(Tensor logits, OptionalTensor correction_bias,
                                                 int64_t top_k, int64_t score, bool normalize,
                                                 double scale, int64_t num_groups,
                                                 int64_t top_groups, int64_t group_score,
                                                 ScalarType ids_dtype,
                                                 std::optional<ScalarType> out_dtype) {
  expect_rank("select_experts", "logits", logits, 2);
  if (top_k < 0) {
    fail(CADRE_INVALID,
         "select_experts: top_k = " + std::to_string(top_k) + ", expected 0 or more");
  }
  const std::vector<int64_t> shape = {logits.size(0), top_k};
  Tensor ids = empty(logits, shape, ids_dtype);
  Tensor weights = empty(logits, shape, out_dtype ? *out_dtype : logits.scalar_type());
  const cadre_tensor logits_view = view(logits);
  const cadre_tensor ids_view = view(ids);
  const cadre_tensor weights_view = view(weights);
  const OptionalView bias(correction_bias);
  cadre_select_experts_args args;
  cadre_select_experts_args_init(&args, sizeof(args));
  args.logits = &logits_view;
  args.correction_bias = bias.get();
  args.score = static_cast<int32_t>(score);
  args.normalize = normalize;
  args.scale = scale;
  args.num_groups = num_groups;
  args.top_groups = top_groups;
  args.group_score = static_cast<int32_t>(group_score);
  args.expert_ids = &ids_view;
  args.weights = &weights_view;
  run(cadre_select_experts, cadre_select_experts_workspace_size, args, logits,
      CADRE_PRECISION_DEFAULT);
  return {weights, ids};
}

inline Tensor select_experts_grad(Tensor logits, Tensor expert_ids, Tensor dweights, int64_t score,
                                  bool normalize, double scale) {
  expect_rank("select_experts", "logits", logits, 2);
  Tensor dlogits = empty(logits, {logits.size(0), logits.size(1)}, logits.scalar_type());
  const cadre_tensor logits_view = view(logits);
  const cadre_tensor ids_view = view(expert_ids);
  const cadre_tensor dweights_view = view(dweights);
  const cadre_tensor dlogits_view = view(dlogits);
  cadre_select_experts_grad_args args;
  cadre_select_experts_grad_args_init(&args, sizeof(args));
  args.logits = &logits_view;
  args.score = static_cast<int32_t>(score);
  args.normalize = normalize;
  args.scale = scale;
  args.expert_ids = &ids_view;
  args.dweights = &dweights_view;
  args.dlogits = &dlogits_view;
  run(cadre_select_experts_grad, cadre_select_experts_grad_workspace_size, args, logits,
      CADRE_PRECISION_DEFAULT);
  return dlogits;
}

inline std::tuple<Tensor, Tensor, Tensor> route(Tensor expert_ids, int64_t num_experts,
                                                ScalarType dtype) {
  expect_rank("route", "expert_ids", expert_ids, 2);
  if (num_experts < 0) {
    fail(CADRE_INVALID,
         "route: num_experts = " + std::to_string(num_experts) + ", expected 0 or more");
  }
  const int64_t tokens = expert_ids.size(0);
  const int64_t top_k = expert_ids.size(1);
  Tensor sizes = empty(expert_ids, {num_experts}, dtype);
  Tensor source_row = empty(expert_ids, {tokens * top_k}, dtype);
  Tensor slot_row = empty(expert_ids, {tokens, top_k}, dtype);
  const cadre_tensor ids_view = view(expert_ids);
  const cadre_tensor sizes_view = view(sizes);
  const cadre_tensor source_view = view(source_row);
  const cadre_tensor slot_view = view(slot_row);
  cadre_route_args args;
  cadre_route_args_init(&args, sizeof(args));
  args.expert_ids = &ids_view;
  args.group_sizes = &sizes_view;
  args.source_row = &source_view;
  args.slot_row = &slot_view;
  run(cadre_route, cadre_route_workspace_size, args, expert_ids, CADRE_PRECISION_DEFAULT);
  return {sizes, source_row, slot_row};
}

/// slot_row is for the gradient, and lets a GPU read every token once.
inline Tensor permute(Tensor x, Tensor source_row, OptionalTensor slot_row) {
  expect_rank("permute", "x", x, 2);
  expect_rank("permute", "source_row", source_row, 1);
  Tensor out = empty(x, {source_row.size(0), x.size(1)}, x.scalar_type());
  const cadre_tensor x_view = view(x);
  const cadre_tensor source_view = view(source_row);
  const OptionalView slot_view(slot_row);
  const cadre_tensor out_view = view(out);
  cadre_permute_args args;
  cadre_permute_args_init(&args, sizeof(args));
  args.x = &x_view;
  args.source_row = &source_view;
  args.slot_row = slot_view.get();
  args.out = &out_view;
  run(cadre_permute, cadre_permute_workspace_size, args, x, CADRE_PRECISION_DEFAULT);
  return out;
}

/// source_row is for the gradient alone.
inline Tensor combine(Tensor y, Tensor slot_row, OptionalTensor /*source_row*/,
                      OptionalTensor weights, OptionalTensor shared, OptionalTensor residual,
                      std::optional<ScalarType> out_dtype) {
  expect_rank("combine", "y", y, 2);
  expect_rank("combine", "slot_row", slot_row, 2);
  Tensor out = empty(y, {slot_row.size(0), y.size(1)}, out_dtype ? *out_dtype : y.scalar_type());
  const cadre_tensor y_view = view(y);
  const cadre_tensor slot_view = view(slot_row);
  const cadre_tensor out_view = view(out);
  const OptionalView weights_view(weights);
  const OptionalView shared_view(shared);
  const OptionalView residual_view(residual);
  cadre_combine_args args;
  cadre_combine_args_init(&args, sizeof(args));
  args.y = &y_view;
  args.slot_row = &slot_view;
  args.weights = weights_view.get();
  args.shared = shared_view.get();
  args.residual = residual_view.get();
  args.out = &out_view;
  run(cadre_combine, cadre_combine_workspace_size, args, y, CADRE_PRECISION_DEFAULT);
  return out;
}

/// dy of that dtype, then dweights of that dtype, as far as they are asked for.
inline std::vector<Tensor> combine_grad(Tensor dout, Tensor slot_row, OptionalTensor source_row,
                                        OptionalTensor weights, OptionalTensor y,
                                        std::optional<ScalarType> dy_dtype,
                                        std::optional<ScalarType> dweights_dtype) {
  expect_rank("combine", "dout", dout, 2);
  expect_rank("combine", "slot_row", slot_row, 2);
  std::vector<Tensor> results;
  const cadre_tensor dout_view = view(dout);
  const cadre_tensor slot_view = view(slot_row);
  const OptionalView source_view(source_row);
  const OptionalView weights_view(weights);
  const OptionalView y_view(y);
  OptionalTensor dy;
  OptionalTensor dweights;
  if (dy_dtype) {
    if (!source_row) fail(CADRE_INVALID, "combine: source_row = None, expected that of route");
    expect_rank("combine", "source_row", *source_row, 1);
    dy = empty(dout, {source_row->size(0), dout.size(1)}, *dy_dtype);
    results.push_back(*dy);
  }
  if (dweights_dtype) {
    dweights = empty(dout, {slot_row.size(0), slot_row.size(1)}, *dweights_dtype);
    results.push_back(*dweights);
  }
  const OptionalView dy_view(dy);
  const OptionalView dweights_view(dweights);
  cadre_combine_grad_args args;
  cadre_combine_grad_args_init(&args, sizeof(args));
  args.dout = &dout_view;
  args.slot_row = &slot_view;
  args.source_row = source_view.get();
  args.weights = weights_view.get();
  args.y = y_view.get();
  args.dy = dy_view.get();
  args.dweights = dweights_view.get();
  run(cadre_combine_grad, cadre_combine_grad_workspace_size, args, dout, CADRE_PRECISION_DEFAULT);
  return results;
}

}  // namespace cadre_torch
