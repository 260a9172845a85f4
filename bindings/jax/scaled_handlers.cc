// The handlers of FP8: quantize, dequantize, amax, and the products of operands with scales.
#include <cstdint>
#include <vector>

#include "cadre/c_api.h"
#include "handler_call.h"

namespace cadre_jax {
namespace {

cadre_scales scales_at(const BatchedView& view, const ffi::Dictionary& attributes, const char* mode,
                       int64_t index, const std::vector<int64_t>& batch) {
  cadre_scales scales = {};
  scales.mode = static_cast<cadre_scale_mode>(attribute<int64_t>(attributes, mode));
  scales.values = view.tensor_at(index, batch);
  return scales;
}

/// x [m, k] or [g, n, k], group_sizes with `grouped` -> data and scales with `rows`, then the same
/// of the transposed copy with `columns`. Behind these operands lie the copy's own buffers, as
/// zeros.
ffi::Error quantize(const Place& place, ffi::RemainingArgs args, ffi::RemainingRets rets,
                    const ffi::Dictionary& attributes) {
  const auto batch_rank = attribute<int64_t>(attributes, "batch_rank");
  const Operands operands(args, batch_rank, place.device);
  const std::vector<BatchedView> results = results_of(place, rets, batch_rank);
  const cadre_call_options options = options_for(place, 0);
  const bool has_rows = attribute<bool>(attributes, "rows");
  const std::vector<int64_t>& batch = results[0].batch();
  return for_each_entry(place, batch, [&](int64_t index) {
    cadre_quantize_args call;
    cadre_quantize_args_init(&call, sizeof(call));
    const cadre_tensor x = operands[0].tensor_at(index, batch);
    call.x = &x;
    if (attribute<bool>(attributes, "grouped")) {
      call.group_sizes = sizes_at(place, operands[1], index, batch);
    }
    call.power_of_two = attribute<bool>(attributes, "power_of_two");
    call.amax_floor = attribute<double>(attributes, "amax_floor");
    cadre_tensor rows, columns;
    cadre_scales rows_scales, columns_scales;
    if (has_rows) {
      rows = results[0].tensor_at(index, batch);
      rows_scales = scales_at(results[1], attributes, "mode", index, batch);
      call.rows = &rows;
      call.rows_scales = &rows_scales;
    }
    if (attribute<bool>(attributes, "columns")) {
      const size_t first = has_rows ? 2 : 0;
      columns = results[first].tensor_at(index, batch);
      columns_scales = scales_at(results[first + 1], attributes, "mode", index, batch);
      call.columns = &columns;
      call.columns_scales = &columns_scales;
    }
    call.options = &options;
    return cadre_quantize(context(), &call);
  });
}

/// data, scales, group_sizes with `grouped` -> [m, k] or [g, n, k]
ffi::Error dequantize(const Place& place, ffi::RemainingArgs args, ffi::RemainingRets rets,
                      const ffi::Dictionary& attributes) {
  const auto batch_rank = attribute<int64_t>(attributes, "batch_rank");
  const Operands operands(args, batch_rank, place.device);
  const std::vector<BatchedView> results = results_of(place, rets, batch_rank);
  const cadre_call_options options = options_for(place, 0);
  const std::vector<int64_t>& batch = results[0].batch();
  return for_each_entry(place, batch, [&](int64_t index) {
    const cadre_tensor x = operands[0].tensor_at(index, batch);
    const cadre_scales scales = scales_at(operands[1], attributes, "mode", index, batch);
    const cadre_tensor out = results[0].tensor_at(index, batch);
    cadre_dequantize_args call;
    cadre_dequantize_args_init(&call, sizeof(call));
    call.x = &x;
    call.x_scales = &scales;
    call.x_columns = attribute<bool>(attributes, "columns");
    if (attribute<bool>(attributes, "grouped")) {
      call.group_sizes = sizes_at(place, operands[2], index, batch);
    }
    call.out = &out;
    call.options = &options;
    return cadre_dequantize(context(), &call);
  });
}

/// x [m, k] or [g, n, k], group_sizes with `grouped` -> in the shape of the scales
ffi::Error amax(const Place& place, ffi::RemainingArgs args, ffi::RemainingRets rets,
                const ffi::Dictionary& attributes) {
  const auto batch_rank = attribute<int64_t>(attributes, "batch_rank");
  const Operands operands(args, batch_rank, place.device);
  const std::vector<BatchedView> results = results_of(place, rets, batch_rank);
  const cadre_call_options options = options_for(place, 0);
  const std::vector<int64_t>& batch = results[0].batch();
  return for_each_entry(place, batch, [&](int64_t index) {
    const cadre_tensor x = operands[0].tensor_at(index, batch);
    const cadre_tensor out = results[0].tensor_at(index, batch);
    cadre_amax_args call;
    cadre_amax_args_init(&call, sizeof(call));
    call.x = &x;
    if (attribute<bool>(attributes, "grouped")) {
      call.group_sizes = sizes_at(place, operands[1], index, batch);
    }
    call.mode = static_cast<cadre_scale_mode>(attribute<int64_t>(attributes, "mode"));
    call.out = &out;
    call.options = &options;
    return cadre_amax(context(), &call);
  });
}

cadre_call_options product_options(const Place& place, const ffi::Dictionary& attributes) {
  cadre_call_options options = options_for(place, 0);
  options.fast_accumulation = attribute<bool>(attributes, "fast_accumulation");
  return options;
}

/// lhs, its scales, rhs, its scales, group_sizes, group_offset, optional bias [g, n] -> [m, n]
ffi::Error scaled_gmm(const Place& place, ffi::RemainingArgs args, ffi::RemainingRets rets,
                      const ffi::Dictionary& attributes) {
  const auto batch_rank = attribute<int64_t>(attributes, "batch_rank");
  const Operands operands(args, batch_rank, place.device);
  const std::vector<BatchedView> results = results_of(place, rets, batch_rank);
  const cadre_call_options options = product_options(place, attributes);
  const std::vector<int64_t>& batch = results[0].batch();
  return for_each_entry(place, batch, [&](int64_t index) {
    const cadre_tensor lhs = operands[0].tensor_at(index, batch);
    const cadre_scales lhs_scales = scales_at(operands[1], attributes, "lhs_mode", index, batch);
    const cadre_tensor rhs_stack = operands[2].tensor_at(index, batch);
    const cadre_scales rhs_scales = scales_at(operands[3], attributes, "rhs_mode", index, batch);
    const cadre_tensor out_tensor = results[0].tensor_at(index, batch);
    const cadre_grouped_tensor rhs = cadre_grouped_from_tensor(&rhs_stack);
    const cadre_grouped_tensor out = cadre_grouped_from_tensor(&out_tensor);
    cadre_gmm_args call;
    cadre_gmm_args_init(&call, sizeof(call));
    call.lhs = &lhs;
    call.lhs_scales = &lhs_scales;
    call.rhs = &rhs;
    call.rhs_scales = &rhs_scales;
    call.out = &out;
    call.transpose_rhs = attribute<bool>(attributes, "transpose_rhs");
    call.options = &options;
    set_groups(place, operands[4], operands[5], index, batch, &call);
    cadre_grouped_tensor bias;
    if (attribute<bool>(attributes, "has_bias")) {
      const cadre_tensor stack = operands[6].tensor_at(index, batch);
      bias = cadre_grouped_vectors(&stack);
      call.bias = &bias;
    }
    return cadre_gmm(context(), &call);
  });
}

/// lhs, its scales, rhs, its scales, group_sizes, group_offset -> [g, k, n]
ffi::Error scaled_tgmm(const Place& place, ffi::RemainingArgs args, ffi::RemainingRets rets,
                       const ffi::Dictionary& attributes) {
  const auto batch_rank = attribute<int64_t>(attributes, "batch_rank");
  const Operands operands(args, batch_rank, place.device);
  const std::vector<BatchedView> results = results_of(place, rets, batch_rank);
  const cadre_call_options options = product_options(place, attributes);
  const std::vector<int64_t>& batch = results[0].batch();
  return for_each_entry(place, batch, [&](int64_t index) {
    const cadre_tensor lhs = operands[0].tensor_at(index, batch);
    const cadre_scales lhs_scales = scales_at(operands[1], attributes, "lhs_mode", index, batch);
    const cadre_tensor rhs = operands[2].tensor_at(index, batch);
    const cadre_scales rhs_scales = scales_at(operands[3], attributes, "rhs_mode", index, batch);
    const cadre_tensor out_tensor = results[0].tensor_at(index, batch);
    const cadre_grouped_tensor out = cadre_grouped_from_tensor(&out_tensor);
    cadre_tgmm_args call;
    cadre_tgmm_args_init(&call, sizeof(call));
    call.lhs = &lhs;
    call.lhs_scales = &lhs_scales;
    call.lhs_columns = attribute<bool>(attributes, "lhs_columns");
    call.rhs = &rhs;
    call.rhs_scales = &rhs_scales;
    call.rhs_columns = attribute<bool>(attributes, "rhs_columns");
    call.out = &out;
    call.options = &options;
    set_groups(place, operands[4], operands[5], index, batch, &call);
    return cadre_tgmm(context(), &call);
  });
}

}  // namespace
}  // namespace cadre_jax

CADRE_JAX_HANDLERS(quantize);
CADRE_JAX_HANDLERS(dequantize);
CADRE_JAX_HANDLERS(amax);
CADRE_JAX_HANDLERS(scaled_gmm);
CADRE_JAX_HANDLERS(scaled_tgmm);
