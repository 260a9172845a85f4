// C ABI: MoeMlp, without an object: each call makes one of its arguments.
#include "cadre/moe_mlp.h"

#include "capi/call.h"

using namespace cadre;  // NOLINT(google-build-using-namespace): this file is the C side

namespace {

struct Arguments {
  MoeMlpWeights weights;
  MoeMlpOptions options;
  MoeMlpForwardArgs forward;
  MoeMlpSaved saved;
  MoeMlpBackwardArgs backward;
};

Status to_cpp(const cadre_moe_mlp_args* given, Arguments* args) {
  cadre_moe_mlp_args c;
  if (Status status = capi::read_struct("moe_mlp", given, sizeof(c), cadre_moe_mlp_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->weights.w13 = capi::grouped(c.w13);
  args->weights.w2 = capi::grouped(c.w2);
  args->weights.bias13 = capi::grouped(c.bias13);
  args->weights.bias2 = capi::grouped(c.bias2);
  args->weights.transposed = c.transposed != 0;
  args->weights.packed_w13 = capi::packed(c.packed_w13);
  args->weights.packed_w2 = capi::packed(c.packed_w2);
  args->options = {.activation = capi::activation(c.activation),
                   .weights_on_input = c.weights_on_input != 0,
                   .delay_wgrad = c.delay_wgrad != 0};
  const TensorView x = capi::tensor(c.x);
  const MoeMlpRouting routing{
      .group_sizes = capi::sizes(c.group_sizes),
      .source_row = capi::tensor(c.source_row),
      .slot_row = capi::tensor(c.slot_row),
      .weights = capi::tensor(c.weights),
      .group_offset = capi::group_offset(c.group_offset, c.group_offset_on_device,
                                         c.group_offset_dtype, x.device)};
  CallOptions options;
  Status status = capi::call_options("moe_mlp", c.options, &options);
  args->forward = {.x = x,
                   .routing = routing,
                   .shared = capi::tensor(c.shared),
                   .residual = capi::tensor(c.residual),
                   .out = capi::tensor(c.out),
                   .preact = capi::tensor(c.preact),
                   .options = options};
  args->saved = {.x = x, .preact = capi::tensor(c.preact), .routing = routing};
  args->backward = {.dout = capi::tensor(c.dout),
                    .dx = capi::tensor(c.dx),
                    .dweights = capi::tensor(c.dweights),
                    .dw13 = capi::grouped(c.dw13),
                    .dw2 = capi::grouped(c.dw2),
                    .dw_beta = capi::scalars(c.dw_beta, c.dw_beta_per_group),
                    .dbias13 = capi::grouped(c.dbias13),
                    .dbias2 = capi::grouped(c.dbias2),
                    .accumulate_dbias = c.accumulate_dbias != 0,
                    .d_preact = capi::tensor(c.d_preact),
                    .activated = capi::tensor(c.activated),
                    .options = options};
  return status;
}

constexpr auto kToCpp = [](const cadre_moe_mlp_args* given, Arguments* args) {
  return to_cpp(given, args);
};

/// `op(layer, context, args)` on the layer that the arguments describe.
template <typename Op>
cadre_status_code call(cadre_context* context, const cadre_moe_mlp_args* args, Op op) {
  return capi::call<Arguments>("moe_mlp", context, args, kToCpp,
                               [&](Context& target, const Arguments& given) {
                                 MoeMlp layer(given.weights, given.options);
                                 return op(layer, target, given);
                               });
}

}  // namespace

void cadre_moe_mlp_args_init(cadre_moe_mlp_args* args, size_t struct_size) {
  cadre_moe_mlp_args result = {};
  result.activation = capi::default_activation();
  result.activation.kind = static_cast<int32_t>(MoeMlpOptions{}.activation.kind);
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_moe_mlp_forward(cadre_context* context, const cadre_moe_mlp_args* args) {
  return call(context, args, [](const MoeMlp& layer, Context& target, const Arguments& given) {
    return layer.forward(target, given.forward);
  });
}

cadre_status_code cadre_moe_mlp_backward(cadre_context* context, const cadre_moe_mlp_args* args) {
  return call(context, args, [](MoeMlp& layer, Context& target, const Arguments& given) {
    return layer.backward(target, given.saved, given.backward);
  });
}

cadre_status_code cadre_moe_mlp_backward_dw(cadre_context* context,
                                            const cadre_moe_mlp_args* args) {
  return call(context, args, [](const MoeMlp& layer, Context& target, const Arguments& given) {
    return layer.weight_gradients(target, given.saved, given.backward);
  });
}

cadre_status_code cadre_moe_mlp_forward_workspace_size(cadre_context* context,
                                                       const cadre_moe_mlp_args* args,
                                                       size_t* size_bytes) {
  return capi::call_for_size<Arguments>("moe_mlp", context, args, kToCpp, size_bytes,
                                        [](Context& target, const Arguments& given, size_t* bytes) {
                                          return MoeMlp(given.weights, given.options)
                                              .forward_workspace_size(target, given.forward, bytes);
                                        });
}

cadre_status_code cadre_moe_mlp_backward_workspace_size(cadre_context* context,
                                                        const cadre_moe_mlp_args* args,
                                                        size_t* size_bytes) {
  return capi::call_for_size<Arguments>("moe_mlp", context, args, kToCpp, size_bytes,
                                        [](Context& target, const Arguments& given, size_t* bytes) {
                                          return MoeMlp(given.weights, given.options)
                                              .backward_workspace_size(target, given.saved,
                                                                       given.backward, bytes);
                                        });
}
