// C ABI: the ops around the products.
#include "cadre/activate.h"
#include "cadre/combine.h"
#include "cadre/permute.h"
#include "cadre/route.h"
#include "cadre/select_experts.h"
#include "capi/call.h"

using namespace cadre;  // NOLINT(google-build-using-namespace): this file is the C side

namespace {

/// An init function for structs whose defaults are all "not given".
template <typename CArgs>
void init_absent(CArgs* args, size_t struct_size) {
  capi::write_defaults(CArgs{}, args, struct_size);
}

Status to_cpp(const cadre_route_args* given, RouteArgs* args) {
  cadre_route_args c;
  if (Status status = capi::read_struct("route", given, sizeof(c), cadre_route_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->expert_ids = capi::tensor(c.expert_ids);
  args->group_sizes = capi::tensor(c.group_sizes);
  args->source_row = capi::tensor(c.source_row);
  args->slot_row = capi::tensor(c.slot_row);
  return capi::call_options("route", c.options, &args->options);
}

Status to_cpp(const cadre_permute_args* given, PermuteArgs* args) {
  cadre_permute_args c;
  constexpr size_t kOldest = offsetof(cadre_permute_args, slot_row);
  if (Status status = capi::read_struct("permute", given, kOldest, cadre_permute_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->x = capi::tensor(c.x);
  args->source_row = capi::tensor(c.source_row);
  args->slot_row = capi::tensor(c.slot_row);
  args->out = capi::tensor(c.out);
  return capi::call_options("permute", c.options, &args->options);
}

Status to_cpp(const cadre_combine_args* given, CombineArgs* args) {
  cadre_combine_args c;
  if (Status status = capi::read_struct("combine", given, sizeof(c), cadre_combine_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->y = capi::tensor(c.y);
  args->slot_row = capi::tensor(c.slot_row);
  args->weights = capi::tensor(c.weights);
  args->shared = capi::tensor(c.shared);
  args->residual = capi::tensor(c.residual);
  args->out = capi::tensor(c.out);
  return capi::call_options("combine", c.options, &args->options);
}

Status to_cpp(const cadre_combine_grad_args* given, CombineGradArgs* args) {
  cadre_combine_grad_args c;
  if (Status status =
          capi::read_struct("combine_grad", given, sizeof(c), cadre_combine_grad_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->dout = capi::tensor(c.dout);
  args->slot_row = capi::tensor(c.slot_row);
  args->source_row = capi::tensor(c.source_row);
  args->weights = capi::tensor(c.weights);
  args->y = capi::tensor(c.y);
  args->dy = capi::tensor(c.dy);
  args->dweights = capi::tensor(c.dweights);
  return capi::call_options("combine_grad", c.options, &args->options);
}

Status to_cpp(const cadre_select_experts_args* given, SelectExpertsArgs* args) {
  cadre_select_experts_args c;
  if (Status status =
          capi::read_struct("select_experts", given, sizeof(c), cadre_select_experts_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->logits = capi::tensor(c.logits);
  args->correction_bias = capi::tensor(c.correction_bias);
  args->selection = {static_cast<ExpertScore>(c.score), c.normalize != 0, c.scale};
  args->num_groups = c.num_groups;
  args->top_groups = c.top_groups;
  args->group_score = static_cast<ExpertGroupScore>(c.group_score);
  args->expert_ids = capi::tensor(c.expert_ids);
  args->weights = capi::tensor(c.weights);
  return capi::call_options("select_experts", c.options, &args->options);
}

Status to_cpp(const cadre_select_experts_grad_args* given, SelectExpertsGradArgs* args) {
  cadre_select_experts_grad_args c;
  if (Status status = capi::read_struct("select_experts_grad", given, sizeof(c),
                                        cadre_select_experts_grad_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->logits = capi::tensor(c.logits);
  args->selection = {static_cast<ExpertScore>(c.score), c.normalize != 0, c.scale};
  args->expert_ids = capi::tensor(c.expert_ids);
  args->dweights = capi::tensor(c.dweights);
  args->dlogits = capi::tensor(c.dlogits);
  return capi::call_options("select_experts_grad", c.options, &args->options);
}

Status to_cpp(const cadre_activate_args* given, ActivateArgs* args) {
  cadre_activate_args c;
  if (Status status = capi::read_struct("activate", given, sizeof(c), cadre_activate_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->preact = capi::tensor(c.preact);
  args->activation = capi::activation(c.activation);
  args->out = capi::tensor(c.out);
  return capi::call_options("activate", c.options, &args->options);
}

Status to_cpp(const cadre_activate_grad_args* given, ActivateGradArgs* args) {
  cadre_activate_grad_args c;
  if (Status status =
          capi::read_struct("activate_grad", given, sizeof(c), cadre_activate_grad_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->preact = capi::tensor(c.preact);
  args->grad = capi::tensor(c.grad);
  args->row_scale = capi::tensor(c.row_scale);
  args->activation = capi::activation(c.activation);
  args->d_preact = capi::tensor(c.d_preact);
  args->activated = capi::tensor(c.activated);
  args->row_dot = capi::tensor(c.row_dot);
  return capi::call_options("activate_grad", c.options, &args->options);
}

constexpr auto kToCpp = [](const auto* given, auto* args) { return to_cpp(given, args); };

}  // namespace

void cadre_route_args_init(cadre_route_args* args, size_t struct_size) {
  init_absent(args, struct_size);
}

cadre_status_code cadre_route(cadre_context* context, const cadre_route_args* args) {
  return capi::call<RouteArgs>("route", context, args, kToCpp, route);
}

cadre_status_code cadre_route_workspace_size(cadre_context* context, const cadre_route_args* args,
                                             size_t* size_bytes) {
  return capi::call_for_size<RouteArgs>("route", context, args, kToCpp, size_bytes,
                                        route_workspace_size);
}

void cadre_permute_args_init(cadre_permute_args* args, size_t struct_size) {
  init_absent(args, struct_size);
}

cadre_status_code cadre_permute(cadre_context* context, const cadre_permute_args* args) {
  return capi::call<PermuteArgs>("permute", context, args, kToCpp, permute);
}

cadre_status_code cadre_permute_workspace_size(cadre_context* context,
                                               const cadre_permute_args* args, size_t* size_bytes) {
  return capi::call_for_size<PermuteArgs>("permute", context, args, kToCpp, size_bytes,
                                          permute_workspace_size);
}

void cadre_combine_args_init(cadre_combine_args* args, size_t struct_size) {
  init_absent(args, struct_size);
}

cadre_status_code cadre_combine(cadre_context* context, const cadre_combine_args* args) {
  return capi::call<CombineArgs>("combine", context, args, kToCpp, combine);
}

cadre_status_code cadre_combine_workspace_size(cadre_context* context,
                                               const cadre_combine_args* args, size_t* size_bytes) {
  return capi::call_for_size<CombineArgs>("combine", context, args, kToCpp, size_bytes,
                                          combine_workspace_size);
}

void cadre_combine_grad_args_init(cadre_combine_grad_args* args, size_t struct_size) {
  init_absent(args, struct_size);
}

cadre_status_code cadre_combine_grad(cadre_context* context, const cadre_combine_grad_args* args) {
  return capi::call<CombineGradArgs>("combine_grad", context, args, kToCpp, combine_grad);
}

cadre_status_code cadre_combine_grad_workspace_size(cadre_context* context,
                                                    const cadre_combine_grad_args* args,
                                                    size_t* size_bytes) {
  return capi::call_for_size<CombineGradArgs>("combine_grad", context, args, kToCpp, size_bytes,
                                              combine_grad_workspace_size);
}

void cadre_select_experts_args_init(cadre_select_experts_args* args, size_t struct_size) {
  const SelectExpertsArgs defaults;
  cadre_select_experts_args result = {};
  result.score = static_cast<int32_t>(defaults.selection.score);
  result.normalize = defaults.selection.normalize;
  result.scale = defaults.selection.scale;
  result.num_groups = defaults.num_groups;
  result.top_groups = defaults.top_groups;
  result.group_score = static_cast<int32_t>(defaults.group_score);
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_select_experts(cadre_context* context,
                                       const cadre_select_experts_args* args) {
  return capi::call<SelectExpertsArgs>("select_experts", context, args, kToCpp, select_experts);
}

cadre_status_code cadre_select_experts_workspace_size(cadre_context* context,
                                                      const cadre_select_experts_args* args,
                                                      size_t* size_bytes) {
  return capi::call_for_size<SelectExpertsArgs>("select_experts", context, args, kToCpp, size_bytes,
                                                select_experts_workspace_size);
}

void cadre_select_experts_grad_args_init(cadre_select_experts_grad_args* args, size_t struct_size) {
  const SelectExpertsGradArgs defaults;
  cadre_select_experts_grad_args result = {};
  result.score = static_cast<int32_t>(defaults.selection.score);
  result.normalize = defaults.selection.normalize;
  result.scale = defaults.selection.scale;
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_select_experts_grad(cadre_context* context,
                                            const cadre_select_experts_grad_args* args) {
  return capi::call<SelectExpertsGradArgs>("select_experts_grad", context, args, kToCpp,
                                           select_experts_grad);
}

cadre_status_code cadre_select_experts_grad_workspace_size(
    cadre_context* context, const cadre_select_experts_grad_args* args, size_t* size_bytes) {
  return capi::call_for_size<SelectExpertsGradArgs>("select_experts_grad", context, args, kToCpp,
                                                    size_bytes, select_experts_grad_workspace_size);
}

void cadre_activate_args_init(cadre_activate_args* args, size_t struct_size) {
  cadre_activate_args result = {};
  result.activation = capi::default_activation();
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_activate(cadre_context* context, const cadre_activate_args* args) {
  return capi::call<ActivateArgs>("activate", context, args, kToCpp, activate);
}

cadre_status_code cadre_activate_workspace_size(cadre_context* context,
                                                const cadre_activate_args* args,
                                                size_t* size_bytes) {
  return capi::call_for_size<ActivateArgs>("activate", context, args, kToCpp, size_bytes,
                                           activate_workspace_size);
}

void cadre_activate_grad_args_init(cadre_activate_grad_args* args, size_t struct_size) {
  cadre_activate_grad_args result = {};
  result.activation = capi::default_activation();
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_activate_grad(cadre_context* context,
                                      const cadre_activate_grad_args* args) {
  return capi::call<ActivateGradArgs>("activate_grad", context, args, kToCpp, activate_grad);
}

cadre_status_code cadre_activate_grad_workspace_size(cadre_context* context,
                                                     const cadre_activate_grad_args* args,
                                                     size_t* size_bytes) {
  return capi::call_for_size<ActivateGradArgs>("activate_grad", context, args, kToCpp, size_bytes,
                                               activate_grad_workspace_size);
}
