// From the structs of the C ABI to the C++ API.
#include "capi/convert.h"

#include "capi/handles.h"

namespace cadre::capi {
namespace {

Device device(cadre_device given) { return {static_cast<DeviceKind>(given.kind), given.index}; }

Extent extent(const cadre_extent& given) {
  if (given.per_group.data == nullptr) return {given.uniform};
  return {sizes(given.per_group), given.max};
}

}  // namespace

TensorView tensor(const cadre_tensor* view) {
  TensorView result;
  if (view == nullptr) return result;
  result.data = view->data;
  result.dtype = static_cast<DType>(view->dtype);
  result.device = device(view->device);
  // A negative rank would read as "not given"; a rank that no op takes is rejected by name.
  result.rank = view->rank < 0 ? kMaxRank + 1 : view->rank;
  std::copy_n(view->shape, kMaxRank, result.shape.begin());
  std::copy_n(view->strides, kMaxRank, result.strides.begin());
  return result;
}

GroupedTensor grouped(const cadre_grouped_tensor* given) {
  GroupedTensor result;
  if (given == nullptr) return result;
  result.placement = static_cast<Placement>(given->placement);
  result.dtype = static_cast<DType>(given->dtype);
  result.device = device(given->device);
  result.num_groups = given->num_groups;
  result.data = given->data;
  result.pointers = given->pointers;
  result.pointers_device = device(given->pointers_device);
  result.rows = extent(given->rows);
  result.cols = extent(given->cols);
  result.group_stride = given->group_stride;
  result.row_stride = given->row_stride;
  result.col_stride = given->col_stride;
  result.contiguous = given->contiguous != 0;
  result.offsets = extent(given->offsets);
  result.capacity = given->capacity;
  result.rank = given->rank;
  std::copy_n(given->shape, kMaxRank, result.shape.begin());
  return result;
}

Scales scales(const cadre_scales* given) {
  if (given == nullptr) return {};
  Scales result(static_cast<ScaleMode>(given->mode), tensor(&given->values));
  // A zeroed struct has no values.
  if (given->values.dtype == 0) result.values = {};
  result.pointers = given->pointers;
  result.pointers_device = device(given->pointers_device);
  return result;
}

GroupSizes sizes(const cadre_sizes& given) {
  GroupSizes result(given.data, static_cast<DType>(given.dtype), given.count, device(given.device));
  result.kind = static_cast<GroupSizesKind>(given.kind);
  return result;
}

GroupScalars scalars(double uniform, const cadre_tensor* per_group) {
  if (per_group == nullptr) return {uniform};
  return {tensor(per_group)};
}

GroupOffset group_offset(int64_t value, const void* on_device, cadre_dtype dtype, Device device) {
  if (on_device == nullptr) return {value};
  return {on_device, static_cast<DType>(dtype), device};
}

Activation activation(const cadre_activation& given) {
  return {.kind = static_cast<ActivationKind>(given.kind),
          .layout = static_cast<GateLayout>(given.layout),
          .alpha = given.alpha,
          .limit = given.limit,
          .up_offset = given.up_offset};
}

cadre_activation default_activation() {
  const Activation defaults;
  return {static_cast<int32_t>(defaults.kind), static_cast<int32_t>(defaults.layout),
          defaults.alpha, defaults.limit, defaults.up_offset};
}

const PackedWeights* packed(const cadre_packed_weights* given) {
  return given == nullptr ? nullptr : &given->packed;
}

Status call_options(std::string_view function, const cadre_call_options* options,
                    CallOptions* result) {
  *result = {};
  if (options == nullptr) return {};
  cadre_call_options given;
  if (Status status = read_struct(function, options, sizeof(cadre_call_options),
                                  cadre_call_options_init, &given);
      !status.ok()) {
    return status;
  }
  result->stream = given.stream;
  result->workspace = given.workspace;
  result->workspace_size_bytes = given.workspace_size_bytes;
  result->precision = static_cast<Precision>(given.precision);
  result->average_rows = given.average_rows;
  result->config = given.config;
  result->fast_accumulation = given.fast_accumulation != 0;
  return {};
}

}  // namespace cadre::capi
