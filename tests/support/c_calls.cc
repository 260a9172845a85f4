// From the arguments of the C++ API to the structs of the C ABI.
#include "tests/support/c_calls.h"

#include <algorithm>
#include <memory>
#include <optional>

namespace cadre::tests {
namespace {

cadre_device to_c(Device device) { return {static_cast<int32_t>(device.kind), device.index}; }

cadre_sizes to_c(const GroupSizes& sizes) {
  return {sizes.data, static_cast<int32_t>(sizes.dtype), to_c(sizes.device), sizes.count,
          static_cast<int32_t>(sizes.kind)};
}

cadre_extent to_c(const Extent& extent) {
  return {extent.uniform, to_c(extent.per_group), extent.max};
}

/// An optional argument of the C ABI: a struct and a pointer to it, or NULL.
class Tensor {
 public:
  explicit Tensor(const TensorView& view) {
    if (!view.given()) return;
    tensor_.emplace();
    tensor_->data = view.data;
    tensor_->dtype = static_cast<int32_t>(view.dtype);
    tensor_->device = to_c(view.device);
    tensor_->rank = view.rank;
    std::copy(view.shape.begin(), view.shape.end(), tensor_->shape);
    std::copy(view.strides.begin(), view.strides.end(), tensor_->strides);
  }
  const cadre_tensor* get() const { return tensor_ ? &*tensor_ : nullptr; }

 private:
  std::optional<cadre_tensor> tensor_;
};

class ScalesOf {
 public:
  explicit ScalesOf(const Scales& scales) {
    const Tensor values(scales.values);
    if (!scales.given() && values.get() == nullptr) return;
    scales_.emplace();
    scales_->mode = static_cast<int32_t>(scales.mode);
    if (values.get() != nullptr) scales_->values = *values.get();
    scales_->pointers = scales.pointers;
    scales_->pointers_device = to_c(scales.pointers_device);
  }
  const cadre_scales* get() const { return scales_ ? &*scales_ : nullptr; }

 private:
  std::optional<cadre_scales> scales_;
};

class Grouped {
 public:
  explicit Grouped(const GroupedTensor& t) {
    if (!t.given()) return;
    tensor_ = cadre_grouped_tensor{static_cast<int32_t>(t.placement),
                                   static_cast<int32_t>(t.dtype),
                                   to_c(t.device),
                                   t.num_groups,
                                   t.data,
                                   t.pointers,
                                   to_c(t.pointers_device),
                                   to_c(t.rows),
                                   to_c(t.cols),
                                   t.group_stride,
                                   t.row_stride,
                                   t.col_stride,
                                   t.contiguous ? 1 : 0,
                                   to_c(t.offsets),
                                   t.capacity,
                                   t.rank,
                                   {t.shape[0], t.shape[1], t.shape[2], t.shape[3]}};
  }
  const cadre_grouped_tensor* get() const { return tensor_ ? &*tensor_ : nullptr; }

 private:
  std::optional<cadre_grouped_tensor> tensor_;
};

cadre_call_options to_c(const CallOptions& options) {
  cadre_call_options result;
  cadre_call_options_init(&result, sizeof(result));
  result.stream = options.stream;
  result.workspace = options.workspace;
  result.workspace_size_bytes = options.workspace_size_bytes;
  result.precision = static_cast<int32_t>(options.precision);
  result.average_rows = options.average_rows;
  result.config = options.config;
  result.fast_accumulation = options.fast_accumulation;
  return result;
}

template <typename Call>
CResult with_context(Call call) {
  cadre_context* context = nullptr;
  if (cadre_context_create(nullptr, &context) != CADRE_OK) {
    return {CADRE_INTERNAL, cadre_status_message()};
  }
  const std::unique_ptr<cadre_context, decltype(&cadre_context_destroy)> owner(
      context, cadre_context_destroy);
  const cadre_status_code code = call(context);
  return {code, code == CADRE_OK ? "" : cadre_status_message()};
}

template <typename CArgs, typename Args>
void set_common(CArgs* c, const Args& args, const cadre_call_options* options) {
  c->accumulate = args.accumulate;
  c->options = options;
}

template <typename CArgs, typename Args>
void set_sizes(CArgs* c, const Args& args) {
  c->group_sizes = to_c(args.group_sizes);
  c->group_offset = args.group_offset.value;
  c->group_offset_on_device = args.group_offset.device_value;
  c->group_offset_dtype = static_cast<int32_t>(args.group_offset.dtype);
}

template <typename CArgs, typename Args>
void set_scalars(CArgs* c, const Args& args, const Tensor& alpha, const Tensor& beta) {
  c->alpha = args.alpha.uniform;
  c->beta = args.beta.uniform;
  c->alpha_per_group = alpha.get();
  c->beta_per_group = beta.get();
}

}  // namespace

CResult call_through_c(const GmmArgs& args) {
  const Tensor lhs(args.lhs), alpha(args.alpha.per_group), beta(args.beta.per_group),
      bias_scale(args.bias_scale), row_scale(args.row_scale), lhs_rows(args.lhs_rows),
      preactivation(args.preactivation);
  const Grouped rhs(args.rhs), out(args.out), c(args.c), bias(args.bias);
  const ScalesOf lhs_scales(args.lhs.scales), rhs_scales(args.rhs.scales);
  const cadre_call_options options = to_c(args.options);
  cadre_gmm_args given;
  cadre_gmm_args_init(&given, sizeof(given));
  set_common(&given, args, &options);
  set_sizes(&given, args);
  set_scalars(&given, args, alpha, beta);
  given.lhs = lhs.get();
  given.rhs = rhs.get();
  given.out = out.get();
  given.transpose_rhs = args.transpose_rhs;
  given.tail = static_cast<int32_t>(args.tail);
  given.c = c.get();
  given.bias = bias.get();
  given.bias_scale = bias_scale.get();
  given.row_scale = row_scale.get();
  given.lhs_rows = lhs_rows.get();
  given.activation = {static_cast<int32_t>(args.activation.kind),
                      static_cast<int32_t>(args.activation.layout), args.activation.alpha,
                      args.activation.limit, args.activation.up_offset};
  given.preactivation = preactivation.get();
  given.lhs_scales = lhs_scales.get();
  given.rhs_scales = rhs_scales.get();
  return with_context([&](cadre_context* context) { return cadre_gmm(context, &given); });
}

CResult call_through_c(const TgmmArgs& args) {
  const Tensor lhs(args.lhs), rhs(args.rhs), alpha(args.alpha.per_group), beta(args.beta.per_group),
      lhs_rows(args.lhs_rows), rhs_rows(args.rhs_rows);
  const Grouped out(args.out), c(args.c);
  const ScalesOf lhs_scales(args.lhs.scales), rhs_scales(args.rhs.scales);
  const cadre_call_options options = to_c(args.options);
  cadre_tgmm_args given;
  cadre_tgmm_args_init(&given, sizeof(given));
  set_common(&given, args, &options);
  set_sizes(&given, args);
  set_scalars(&given, args, alpha, beta);
  given.lhs = lhs.get();
  given.rhs = rhs.get();
  given.out = out.get();
  given.c = c.get();
  given.lhs_rows = lhs_rows.get();
  given.rhs_rows = rhs_rows.get();
  given.lhs_scales = lhs_scales.get();
  given.rhs_scales = rhs_scales.get();
  given.lhs_columns = args.lhs.columns;
  given.rhs_columns = args.rhs.columns;
  return with_context([&](cadre_context* context) { return cadre_tgmm(context, &given); });
}

CResult call_through_c(const GroupedGemmArgs& args) {
  const Tensor alpha(args.alpha.per_group), beta(args.beta.per_group);
  const Grouped a(args.a), b(args.b), c(args.c), d(args.d);
  const ScalesOf a_scales(args.a.scales), b_scales(args.b.scales);
  const cadre_call_options options = to_c(args.options);
  cadre_grouped_gemm_args given;
  cadre_grouped_gemm_args_init(&given, sizeof(given));
  set_common(&given, args, &options);
  set_scalars(&given, args, alpha, beta);
  given.a = a.get();
  given.b = b.get();
  given.c = c.get();
  given.d = d.get();
  given.transa = args.transa;
  given.transb = args.transb;
  given.a_scales = a_scales.get();
  given.b_scales = b_scales.get();
  return with_context([&](cadre_context* context) { return cadre_grouped_gemm(context, &given); });
}

CResult call_through_c(const BiasGradArgs& args) {
  const Tensor dy(args.dy), dbias_scale(args.dbias_scale), bias_scale(args.bias_scale);
  const Grouped dbias(args.dbias), bias(args.bias);
  const cadre_call_options options = to_c(args.options);
  cadre_bias_grad_args given;
  cadre_bias_grad_args_init(&given, sizeof(given));
  set_common(&given, args, &options);
  set_sizes(&given, args);
  given.dy = dy.get();
  given.dbias = dbias.get();
  given.dbias_scale = dbias_scale.get();
  given.bias = bias.get();
  given.bias_scale = bias_scale.get();
  return with_context([&](cadre_context* context) { return cadre_bias_grad(context, &given); });
}

}  // namespace cadre::tests
