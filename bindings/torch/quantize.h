// quantize, dequantize and amax for torch, and the gradient of an activation, which the layer in
// FP8 runs between its products.
#pragma once

#include "scales_view.h"
#include "views.h"

namespace cadre_torch {

#define CADRE_TORCH_ACTIVATION "int activation, bool interleaved, float[] clamp"

constexpr const char* kQuantizeSchemas[] = {
    // Data and scales of the rows, then of the column-wise copy, as far as they are wanted.
    "quantize(Tensor x, Tensor? source_row, Tensor? row_scale, " CADRE_TORCH_ACTIVATION
    ", Tensor? group_sizes, bool ends, ScalarType dtype, ScalarType scale_dtype, int mode, "
    "bool power_of_two, float amax_floor, bool wants_rows, bool wants_columns) -> Tensor[]",
    "dequantize(Tensor x, Tensor scales, int mode, bool columns, Tensor? group_sizes, bool ends, "
    "SymInt num_rows, ScalarType out_dtype) -> Tensor",
    "amax(Tensor x, Tensor? group_sizes, bool ends, int mode) -> Tensor",
    "weighted_activate_grad(Tensor preact, Tensor grad, Tensor? row_scale, " CADRE_TORCH_ACTIVATION
    ", bool wants_row_dot) -> Tensor[]",
};

#undef CADRE_TORCH_ACTIVATION

inline int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

/// Inner values that share a scale; 1 in modes without blocks, and in what the C ABI will refuse.
inline int64_t block_of(int64_t mode) {
  return mode == CADRE_SCALE_BLOCK_128 ? 128 : mode == CADRE_SCALE_MX ? 32 : 1;
}

/// Shapes of what quantize makes of rows [m, k] in `groups` groups, or of weights [groups, n, k].
/// cadre/scaled_tensor.h has the layouts.
struct QuantizedShapes {
  int64_t mode;
  int64_t groups;

  std::vector<int64_t> scales_of_rows(int64_t m, int64_t k) const {
    if (mode == CADRE_SCALE_TENSOR) return {1};
    if (mode == CADRE_SCALE_ROW) return {m};
    return {m, blocks_of(k, block_of(mode))};
  }
  std::vector<int64_t> scales_of_weights(int64_t n, int64_t k) const {
    if (mode == CADRE_SCALE_TENSOR) return {groups};
    if (mode == CADRE_SCALE_ROW) return {groups, n};
    return {groups, mode == CADRE_SCALE_MX ? n : blocks_of(n, 128), blocks_of(k, block_of(mode))};
  }
  std::vector<int64_t> scales_of_columns(int64_t m, int64_t k) const {
    if (mode == CADRE_SCALE_TENSOR) return {1};
    if (mode == CADRE_SCALE_ROW) return {groups, k};
    return {capacity(m, block_of(mode)) / block_of(mode), k};
  }
  /// Rows in groups that each fill whole blocks, at most.
  int64_t capacity(int64_t m, int64_t block) const {
    const int64_t with_rows = std::min(m, groups);
    return (m + with_rows * (block - 1)) / block * block;
  }
};

/// Views of one arrangement; the tensors are results of the operator.
struct Quantized {
  Tensor data;
  Tensor scales;
  cadre_tensor data_view;
  cadre_scales scales_view;

  Quantized(const Tensor& values, const Tensor& value_scales, int64_t mode)
      : data(values), scales(value_scales), data_view(view(data)), scales_view{} {
    scales_view.mode = static_cast<cadre_scale_mode>(mode);
    scales_view.values = view(scales);
  }
};

/// Group sizes that may be absent: all rows are one group then.
class OptionalSizes {
 public:
  OptionalSizes(const char* op, const OptionalTensor& sizes, bool ends) {
    if (sizes) view_.emplace(op, "group_sizes", *sizes, ends ? CADRE_ENDS : CADRE_SIZES);
  }
  cadre_sizes get() const { return view_ ? view_->get() : cadre_sizes{}; }
  int64_t groups() const { return view_ ? view_->get().count : 1; }

 private:
  std::optional<SizesView> view_;
};

inline std::vector<Tensor> quantize(Tensor x, OptionalTensor source_row, OptionalTensor row_scale,
                                    int64_t activation, bool interleaved, std::vector<double> clamp,
                                    OptionalTensor group_sizes, bool ends, ScalarType dtype,
                                    ScalarType scale_dtype, int64_t mode, bool power_of_two,
                                    double amax_floor, bool wants_rows, bool wants_columns) {
  const bool weights = x.dim() == 3;
  if (!weights) expect_rank("quantize", "x", x, 2);
  const OptionalSizes sizes("quantize", group_sizes, ends);
  const QuantizedShapes shapes{mode, weights ? x.size(0) : sizes.groups()};
  const int64_t m = source_row ? source_row->numel() : x.size(0);
  const int64_t n = weights ? x.size(1) : 0;
  const int64_t width = x.size(x.dim() - 1);
  const int64_t k = activation >= CADRE_ACTIVATION_SWIGLU ? width / 2 : width;
  const auto make = [&](const std::vector<int64_t>& data, const std::vector<int64_t>& scales) {
    return Quantized(empty(x, data, dtype), empty(x, scales, scale_dtype), mode);
  };
  std::optional<Quantized> rows;
  std::optional<Quantized> columns;
  if (wants_rows) {
    rows = weights ? make({shapes.groups, n, k}, shapes.scales_of_weights(n, k))
                   : make({m, k}, shapes.scales_of_rows(m, k));
  }
  if (wants_columns) {
    columns = weights ? make({shapes.groups, k, n}, shapes.scales_of_weights(k, n))
                      : make({k, shapes.capacity(m, 32)}, shapes.scales_of_columns(m, k));
  }
  const cadre_tensor x_view = view(x);
  const OptionalView source_view(source_row);
  const OptionalView scale_view(row_scale);
  cadre_quantize_args args;
  cadre_quantize_args_init(&args, sizeof(args));
  args.x = &x_view;
  args.source_row = source_view.get();
  args.row_scale = scale_view.get();
  args.activation = activation_of(activation, interleaved, clamp);
  args.group_sizes = sizes.get();
  args.power_of_two = power_of_two;
  args.amax_floor = amax_floor;
  std::vector<Tensor> results;
  if (rows) {
    args.rows = &rows->data_view;
    args.rows_scales = &rows->scales_view;
    results.insert(results.end(), {rows->data, rows->scales});
  }
  if (columns) {
    args.columns = &columns->data_view;
    args.columns_scales = &columns->scales_view;
    results.insert(results.end(), {columns->data, columns->scales});
  }
  run(cadre_quantize, cadre_quantize_workspace_size, args, x, CADRE_PRECISION_DEFAULT);
  return results;
}

/// num_rows: of the result, where x is a column-wise copy.
inline Tensor dequantize(Tensor x, Tensor scales, int64_t mode, bool columns,
                         OptionalTensor group_sizes, bool ends, int64_t num_rows,
                         ScalarType out_dtype) {
  std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
  if (columns) {
    expect_rank("dequantize", "x", x, 2);
    shape = {num_rows, x.size(0)};
  }
  Tensor out = empty(x, shape, out_dtype);
  const OptionalSizes sizes("dequantize", group_sizes, ends);
  const ScalesView scales_view(OptionalTensor(scales), mode);
  const cadre_tensor x_view = view(x);
  const cadre_tensor out_view = view(out);
  cadre_dequantize_args args;
  cadre_dequantize_args_init(&args, sizeof(args));
  args.x = &x_view;
  args.x_scales = scales_view.get();
  args.x_columns = columns;
  args.group_sizes = sizes.get();
  args.out = &out_view;
  run(cadre_dequantize, cadre_dequantize_workspace_size, args, x, CADRE_PRECISION_DEFAULT);
  return out;
}

inline Tensor amax(Tensor x, OptionalTensor group_sizes, bool ends, int64_t mode) {
  const bool weights = x.dim() == 3;
  if (!weights) expect_rank("amax", "x", x, 2);
  const OptionalSizes sizes("amax", group_sizes, ends);
  const QuantizedShapes shapes{mode, weights ? x.size(0) : sizes.groups()};
  Tensor out = empty(x,
                     weights ? shapes.scales_of_weights(x.size(1), x.size(2))
                             : shapes.scales_of_rows(x.size(0), x.size(1)),
                     ScalarType::Float);
  const cadre_tensor x_view = view(x);
  const cadre_tensor out_view = view(out);
  cadre_amax_args args;
  cadre_amax_args_init(&args, sizeof(args));
  args.x = &x_view;
  args.group_sizes = sizes.get();
  args.mode = static_cast<cadre_scale_mode>(mode);
  args.out = &out_view;
  run(cadre_amax, cadre_amax_workspace_size, args, x, CADRE_PRECISION_DEFAULT);
  return out;
}

/// d_preact, and with wants_row_dot the gradient of row_scale in f32.
inline std::vector<Tensor> weighted_activate_grad(Tensor preact, Tensor grad,
                                                  OptionalTensor row_scale, int64_t activation,
                                                  bool interleaved, std::vector<double> clamp,
                                                  bool wants_row_dot) {
  expect_rank("activate", "preact", preact, 2);
  std::vector<Tensor> results = {
      empty(preact, {preact.size(0), preact.size(1)}, preact.scalar_type())};
  if (wants_row_dot) results.push_back(empty(preact, {preact.size(0)}, ScalarType::Float));
  const cadre_tensor preact_view = view(preact);
  const cadre_tensor grad_view = view(grad);
  const OptionalView scale_view(row_scale);
  const cadre_tensor d_preact_view = view(results[0]);
  const OptionalView dot_view(wants_row_dot ? OptionalTensor(results[1]) : OptionalTensor());
  cadre_activate_grad_args args;
  cadre_activate_grad_args_init(&args, sizeof(args));
  args.preact = &preact_view;
  args.grad = &grad_view;
  args.row_scale = scale_view.get();
  args.activation = activation_of(activation, interleaved, clamp);
  args.d_preact = &d_preact_view;
  args.row_dot = dot_view.get();
  run(cadre_activate_grad, cadre_activate_grad_workspace_size, args, preact,
      CADRE_PRECISION_DEFAULT);
  return results;
}

}  // namespace cadre_torch
