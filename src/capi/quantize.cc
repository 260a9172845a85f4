// C ABI: quantize, dequantize, amax.
#include "cadre/quantize.h"

#include "capi/call.h"

using namespace cadre;  // NOLINT(google-build-using-namespace): this file is the C side

namespace {

/// Sizes of a zeroed struct are not given.
GroupSizes optional_sizes(const cadre_sizes& given) {
  return given.data == nullptr && given.count == 0 ? GroupSizes{} : capi::sizes(given);
}

Status to_cpp(const cadre_quantize_args* given, QuantizeArgs* args) {
  cadre_quantize_args c;
  if (Status status = capi::read_struct("quantize", given, sizeof(c), cadre_quantize_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->x = capi::tensor(c.x);
  args->source_row = capi::tensor(c.source_row);
  args->row_scale = capi::tensor(c.row_scale);
  args->activation = capi::activation(c.activation);
  args->group_sizes = optional_sizes(c.group_sizes);
  args->power_of_two = c.power_of_two != 0;
  args->amax_floor = c.amax_floor;
  args->rows = ScaledTensor(capi::tensor(c.rows), capi::scales(c.rows_scales));
  args->columns = ScaledTensor(capi::tensor(c.columns), capi::scales(c.columns_scales));
  // The transposed copy of weights is weights.
  args->columns.columns = args->x.rank == 2;
  return capi::call_options("quantize", c.options, &args->options);
}

Status to_cpp(const cadre_dequantize_args* given, DequantizeArgs* args) {
  cadre_dequantize_args c;
  if (Status status =
          capi::read_struct("dequantize", given, sizeof(c), cadre_dequantize_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->x = ScaledTensor(capi::tensor(c.x), capi::scales(c.x_scales));
  args->x.columns = c.x_columns != 0;
  args->group_sizes = optional_sizes(c.group_sizes);
  args->out = capi::tensor(c.out);
  return capi::call_options("dequantize", c.options, &args->options);
}

Status to_cpp(const cadre_amax_args* given, AmaxArgs* args) {
  cadre_amax_args c;
  if (Status status = capi::read_struct("amax", given, sizeof(c), cadre_amax_args_init, &c);
      !status.ok()) {
    return status;
  }
  args->x = capi::tensor(c.x);
  args->group_sizes = optional_sizes(c.group_sizes);
  args->mode = static_cast<ScaleMode>(c.mode);
  args->out = capi::tensor(c.out);
  return capi::call_options("amax", c.options, &args->options);
}

constexpr auto kToCpp = [](const auto* given, auto* args) { return to_cpp(given, args); };

}  // namespace

void cadre_quantize_args_init(cadre_quantize_args* args, size_t struct_size) {
  cadre_quantize_args result = {};
  result.activation = capi::default_activation();
  capi::write_defaults(result, args, struct_size);
}

cadre_status_code cadre_quantize(cadre_context* context, const cadre_quantize_args* args) {
  return capi::call<QuantizeArgs>("quantize", context, args, kToCpp, quantize);
}

cadre_status_code cadre_quantize_workspace_size(cadre_context* context,
                                                const cadre_quantize_args* args,
                                                size_t* size_bytes) {
  return capi::call_for_size<QuantizeArgs>("quantize", context, args, kToCpp, size_bytes,
                                           quantize_workspace_size);
}

void cadre_dequantize_args_init(cadre_dequantize_args* args, size_t struct_size) {
  capi::write_defaults(cadre_dequantize_args{}, args, struct_size);
}

cadre_status_code cadre_dequantize(cadre_context* context, const cadre_dequantize_args* args) {
  return capi::call<DequantizeArgs>("dequantize", context, args, kToCpp, dequantize);
}

cadre_status_code cadre_dequantize_workspace_size(cadre_context* context,
                                                  const cadre_dequantize_args* args,
                                                  size_t* size_bytes) {
  return capi::call_for_size<DequantizeArgs>("dequantize", context, args, kToCpp, size_bytes,
                                             dequantize_workspace_size);
}

void cadre_amax_args_init(cadre_amax_args* args, size_t struct_size) {
  capi::write_defaults(cadre_amax_args{}, args, struct_size);
}

cadre_status_code cadre_amax(cadre_context* context, const cadre_amax_args* args) {
  return capi::call<AmaxArgs>("amax", context, args, kToCpp, amax);
}

cadre_status_code cadre_amax_workspace_size(cadre_context* context, const cadre_amax_args* args,
                                            size_t* size_bytes) {
  return capi::call_for_size<AmaxArgs>("amax", context, args, kToCpp, size_bytes,
                                       amax_workspace_size);
}
