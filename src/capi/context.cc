// C ABI: status, types, views and the context.
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include "backend/registry.h"
#include "cadre/context.h"
#include "cadre/version.h"
#include "capi/convert.h"
#include "capi/error.h"
#include "capi/handles.h"
#include "core/per_thread.h"

namespace cadre::capi {
namespace {

/// Of this thread; null when there is no memory for one.
std::string* last_message() {
  static PerThread<std::string> messages;
  return messages.get();
}

cadre_device to_c(Device device) { return {static_cast<int32_t>(device.kind), device.index}; }

cadre_extent to_c(const Extent& extent) {
  return {extent.uniform,
          {extent.per_group.data, static_cast<int32_t>(extent.per_group.dtype),
           to_c(extent.per_group.device), extent.per_group.count,
           static_cast<int32_t>(extent.per_group.kind)},
          extent.max};
}

cadre_grouped_tensor to_c(const GroupedTensor& tensor) {
  cadre_grouped_tensor result = {};
  result.placement = static_cast<int32_t>(tensor.placement);
  result.dtype = static_cast<int32_t>(tensor.dtype);
  result.device = to_c(tensor.device);
  result.num_groups = tensor.num_groups;
  result.data = tensor.data;
  result.pointers = tensor.pointers;
  result.pointers_device = to_c(tensor.pointers_device);
  result.rows = to_c(tensor.rows);
  result.cols = to_c(tensor.cols);
  result.group_stride = tensor.group_stride;
  result.row_stride = tensor.row_stride;
  result.col_stride = tensor.col_stride;
  result.contiguous = tensor.contiguous ? 1 : 0;
  result.offsets = to_c(tensor.offsets);
  result.capacity = tensor.capacity;
  result.rank = tensor.rank;
  std::copy(tensor.shape.begin(), tensor.shape.end(), result.shape);
  return result;
}

}  // namespace

cadre_status_code report(const Status& status) noexcept {
  if (std::string* const message = last_message(); message != nullptr && !status.ok()) {
    try {
      *message = status.message();
    } catch (const std::bad_alloc&) {
      *message = ops::kNoMemory;
    }
  }
  return static_cast<cadre_status_code>(status.code());
}

}  // namespace cadre::capi

using namespace cadre;  // NOLINT(google-build-using-namespace): this file is the C side

const char* cadre_status_message(void) {
  const std::string* const message = capi::last_message();
  return message != nullptr ? message->c_str() : ops::kNoMemory;
}

const char* cadre_version(void) { return version(); }

const char* cadre_backends(void) {
  const char* result = "";
  (void)capi::guarded("cadre_backends", [&]() -> Status {
    static const std::string names = backend::Registry::instance().names();
    result = names.c_str();
    return {};
  });
  return result;
}

size_t cadre_dtype_size(cadre_dtype dtype) { return size_of(static_cast<DType>(dtype)); }

const char* cadre_dtype_name(cadre_dtype dtype) {
  return name_of(static_cast<DType>(dtype)).data();  // views of string literals: terminated
}

cadre_dtype cadre_default_output_dtype(cadre_dtype lhs, cadre_dtype rhs) {
  return static_cast<cadre_dtype>(
      default_output_dtype(static_cast<DType>(lhs), static_cast<DType>(rhs)));
}

cadre_tensor cadre_tensor_contiguous(void* data, cadre_dtype dtype, int32_t rank,
                                     const int64_t* shape, cadre_device device) {
  cadre_tensor tensor = {};
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.device = device;
  // Without a shape there is no view: a rank that every op rejects.
  tensor.rank = shape == nullptr && rank > 0 ? kMaxRank + 1 : rank;
  if (tensor.rank > kMaxRank) return tensor;
  uint64_t stride = 1;  // unsigned: a huge shape wraps here and is rejected by the op
  for (int32_t i = rank - 1; i >= 0; --i) {
    tensor.shape[i] = shape[i];
    tensor.strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(shape[i]);
  }
  return tensor;
}

cadre_grouped_tensor cadre_grouped_from_tensor(const cadre_tensor* tensor) {
  return capi::to_c(GroupedTensor(capi::tensor(tensor)));
}

cadre_grouped_tensor cadre_grouped_vectors(const cadre_tensor* tensor) {
  return capi::to_c(GroupedTensor::vectors(capi::tensor(tensor)));
}

cadre_grouped_tensor cadre_grouped_list(void* const* pointers, int64_t num_groups,
                                        const cadre_tensor* like, cadre_device pointers_device) {
  return capi::to_c(
      GroupedTensor::list(pointers, num_groups, capi::tensor(like),
                          {static_cast<DeviceKind>(pointers_device.kind), pointers_device.index}));
}

void cadre_context_options_init(cadre_context_options* options, size_t struct_size) {
  const ContextOptions defaults;
  cadre_context_options result = {};
  result.num_threads = defaults.num_threads;
  result.sm_count = defaults.sm_count;
  result.tuned = defaults.tuned ? 1 : 0;
  capi::write_defaults(result, options, struct_size);
}

cadre_status_code cadre_context_create(const cadre_context_options* options,
                                       cadre_context** context) {
  return capi::guarded("cadre_context_create", [&]() -> Status {
    if (context == nullptr) {
      return Status::invalid("context: context = null, expected a place for the handle");
    }
    *context = nullptr;
    ContextOptions settings;
    if (options != nullptr) {
      cadre_context_options given;
      if (Status status =
              capi::read_struct("context", options, offsetof(cadre_context_options, tune_cache),
                                cadre_context_options_init, &given);
          !status.ok()) {
        return status;
      }
      settings.num_threads = given.num_threads;
      settings.sm_count = given.sm_count;
      if (given.isa != nullptr) settings.isa = given.isa;
      if (given.backend != nullptr) settings.backend = given.backend;
      if (given.tune_cache != nullptr) settings.tune_cache = given.tune_cache;
      settings.tuned = given.tuned != 0;
    }
    auto handle = std::make_unique<cadre_context>(settings);
    if (!handle->context.status().ok()) return handle->context.status();
    *context = handle.release();
    return {};
  });
}

void cadre_context_destroy(cadre_context* context) { delete context; }

cadre_status_code cadre_check(cadre_context* context, cadre_device device, void* stream) {
  return capi::guarded("cadre_check", [&]() -> Status {
    if (context == nullptr) return Status::invalid("check: context = null, expected a context");
    return context->context.check({static_cast<DeviceKind>(device.kind), device.index}, stream);
  });
}

void cadre_call_options_init(cadre_call_options* options, size_t struct_size) {
  const CallOptions defaults;
  cadre_call_options result = {};
  result.precision = static_cast<int32_t>(defaults.precision);
  result.average_rows = defaults.average_rows;
  capi::write_defaults(result, options, struct_size);
}
