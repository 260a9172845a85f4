// C ABI: the ops.
#include "cadre/bias_grad.h"
#include "cadre/gmm.h"
#include "cadre/grouped_gemm.h"
#include "cadre/tgmm.h"
#include "capi/call.h"

namespace cadre::capi {

Status to_cpp(const cadre_gmm_args* given, GmmArgs* args) {
  cadre_gmm_args c;
  if (Status status =
          capi::read_struct("gmm", given, sizeof(cadre_gmm_args), cadre_gmm_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->lhs = capi::tensor(c.lhs);
  args->rhs = capi::grouped(c.rhs);
  args->lhs.scales = capi::scales(c.lhs_scales);
  args->rhs.scales = capi::scales(c.rhs_scales);
  args->group_sizes = capi::sizes(c.group_sizes);
  args->out = capi::grouped(c.out);
  args->transpose_rhs = c.transpose_rhs != 0;
  args->alpha = capi::scalars(c.alpha, c.alpha_per_group);
  args->beta = capi::scalars(c.beta, c.beta_per_group);
  args->accumulate = c.accumulate != 0;
  args->c = capi::grouped(c.c);
  args->bias = capi::grouped(c.bias);
  args->bias_scale = capi::tensor(c.bias_scale);
  args->row_scale = capi::tensor(c.row_scale);
  args->lhs_rows = capi::tensor(c.lhs_rows);
  args->activation = capi::activation(c.activation);
  args->preactivation = capi::tensor(c.preactivation);
  args->tail = static_cast<Tail>(c.tail);
  args->group_offset = capi::group_offset(c.group_offset, c.group_offset_on_device,
                                          c.group_offset_dtype, args->lhs.device);
  args->packed_rhs = capi::packed(c.packed_rhs);
  return capi::call_options("gmm", c.options, &args->options);
}

Status to_cpp(const cadre_tgmm_args* given, TgmmArgs* args) {
  cadre_tgmm_args c;
  if (Status status =
          capi::read_struct("tgmm", given, sizeof(cadre_tgmm_args), cadre_tgmm_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->lhs = capi::tensor(c.lhs);
  args->rhs = capi::tensor(c.rhs);
  args->lhs.scales = capi::scales(c.lhs_scales);
  args->rhs.scales = capi::scales(c.rhs_scales);
  args->lhs.columns = c.lhs_columns != 0;
  args->rhs.columns = c.rhs_columns != 0;
  args->lhs_rows = capi::tensor(c.lhs_rows);
  args->rhs_rows = capi::tensor(c.rhs_rows);
  args->group_sizes = capi::sizes(c.group_sizes);
  args->out = capi::grouped(c.out);
  args->alpha = capi::scalars(c.alpha, c.alpha_per_group);
  args->beta = capi::scalars(c.beta, c.beta_per_group);
  args->accumulate = c.accumulate != 0;
  args->c = capi::grouped(c.c);
  args->group_offset = capi::group_offset(c.group_offset, c.group_offset_on_device,
                                          c.group_offset_dtype, args->lhs.device);
  return capi::call_options("tgmm", c.options, &args->options);
}

Status to_cpp(const cadre_grouped_gemm_args* given, GroupedGemmArgs* args) {
  cadre_grouped_gemm_args c;
  if (Status status = capi::read_struct("grouped_gemm", given, sizeof(cadre_grouped_gemm_args),
                                        cadre_grouped_gemm_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->a = capi::grouped(c.a);
  args->b = capi::grouped(c.b);
  args->a.scales = capi::scales(c.a_scales);
  args->b.scales = capi::scales(c.b_scales);
  args->c = capi::grouped(c.c);
  args->d = capi::grouped(c.d);
  args->transa = c.transa != 0;
  args->transb = c.transb != 0;
  args->alpha = capi::scalars(c.alpha, c.alpha_per_group);
  args->beta = capi::scalars(c.beta, c.beta_per_group);
  args->accumulate = c.accumulate != 0;
  return capi::call_options("grouped_gemm", c.options, &args->options);
}

Status to_cpp(const cadre_bias_grad_args* given, BiasGradArgs* args) {
  cadre_bias_grad_args c;
  if (Status status = capi::read_struct("bias_grad", given, sizeof(cadre_bias_grad_args),
                                        cadre_bias_grad_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->dy = capi::tensor(c.dy);
  args->group_sizes = capi::sizes(c.group_sizes);
  args->dbias = capi::grouped(c.dbias);
  args->dbias_scale = capi::tensor(c.dbias_scale);
  args->bias = capi::grouped(c.bias);
  args->bias_scale = capi::tensor(c.bias_scale);
  args->accumulate = c.accumulate != 0;
  args->group_offset = capi::group_offset(c.group_offset, c.group_offset_on_device,
                                          c.group_offset_dtype, args->dy.device);
  return capi::call_options("bias_grad", c.options, &args->options);
}

}  // namespace cadre::capi

using namespace cadre;  // NOLINT(google-build-using-namespace): this file is the C side

namespace {

constexpr auto kToCpp = [](const auto* given, auto* args) { return capi::to_cpp(given, args); };

}  // namespace

void cadre_gmm_args_init(cadre_gmm_args* args, size_t struct_size) {
  const GmmArgs defaults;
  cadre_gmm_args result = {};
  result.transpose_rhs = defaults.transpose_rhs;
  result.accumulate = defaults.accumulate;
  result.tail = static_cast<int32_t>(defaults.tail);
  result.alpha = defaults.alpha.uniform;
  result.beta = defaults.beta.uniform;
  result.activation = capi::default_activation();
  result.group_offset = defaults.group_offset.value;
  result.group_sizes.dtype = static_cast<int32_t>(defaults.group_sizes.dtype);
  result.group_offset_dtype = static_cast<int32_t>(defaults.group_offset.dtype);
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_gmm(cadre_context* context, const cadre_gmm_args* args) {
  return capi::call<GmmArgs>("gmm", context, args, kToCpp, gmm);
}

cadre_status_code cadre_gmm_workspace_size(cadre_context* context, const cadre_gmm_args* args,
                                           size_t* size_bytes) {
  return capi::call_for_size<GmmArgs>("gmm", context, args, kToCpp, size_bytes, gmm_workspace_size);
}

void cadre_tgmm_args_init(cadre_tgmm_args* args, size_t struct_size) {
  const TgmmArgs defaults;
  cadre_tgmm_args result = {};
  result.accumulate = defaults.accumulate;
  result.alpha = defaults.alpha.uniform;
  result.beta = defaults.beta.uniform;
  result.group_offset = defaults.group_offset.value;
  result.group_sizes.dtype = static_cast<int32_t>(defaults.group_sizes.dtype);
  result.group_offset_dtype = static_cast<int32_t>(defaults.group_offset.dtype);
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_tgmm(cadre_context* context, const cadre_tgmm_args* args) {
  return capi::call<TgmmArgs>("tgmm", context, args, kToCpp, tgmm);
}

cadre_status_code cadre_tgmm_workspace_size(cadre_context* context, const cadre_tgmm_args* args,
                                            size_t* size_bytes) {
  return capi::call_for_size<TgmmArgs>("tgmm", context, args, kToCpp, size_bytes,
                                       tgmm_workspace_size);
}

void cadre_grouped_gemm_args_init(cadre_grouped_gemm_args* args, size_t struct_size) {
  const GroupedGemmArgs defaults;
  cadre_grouped_gemm_args result = {};
  result.transa = defaults.transa;
  result.transb = defaults.transb;
  result.accumulate = defaults.accumulate;
  result.alpha = defaults.alpha.uniform;
  result.beta = defaults.beta.uniform;
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_grouped_gemm(cadre_context* context, const cadre_grouped_gemm_args* args) {
  return capi::call<GroupedGemmArgs>("grouped_gemm", context, args, kToCpp, grouped_gemm);
}

cadre_status_code cadre_grouped_gemm_workspace_size(cadre_context* context,
                                                    const cadre_grouped_gemm_args* args,
                                                    size_t* size_bytes) {
  return capi::call_for_size<GroupedGemmArgs>("grouped_gemm", context, args, kToCpp, size_bytes,
                                              grouped_gemm_workspace_size);
}

void cadre_bias_grad_args_init(cadre_bias_grad_args* args, size_t struct_size) {
  const BiasGradArgs defaults;
  cadre_bias_grad_args result = {};
  result.accumulate = defaults.accumulate;
  result.group_offset = defaults.group_offset.value;
  result.group_sizes.dtype = static_cast<int32_t>(defaults.group_sizes.dtype);
  result.group_offset_dtype = static_cast<int32_t>(defaults.group_offset.dtype);
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_bias_grad(cadre_context* context, const cadre_bias_grad_args* args) {
  return capi::call<BiasGradArgs>("bias_grad", context, args, kToCpp, bias_grad);
}

cadre_status_code cadre_bias_grad_workspace_size(cadre_context* context,
                                                 const cadre_bias_grad_args* args,
                                                 size_t* size_bytes) {
  return capi::call_for_size<BiasGradArgs>("bias_grad", context, args, kToCpp, size_bytes,
                                           bias_grad_workspace_size);
}
