// What every handler over the C ABI does: operands that may carry leading batch dims, group sizes,
// options, and a call for each batch entry.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "batched_views.h"
#include "cadre/c_api.h"
#include "runtime.h"
#include "xla/ffi/api/ffi.h"

namespace cadre_jax {

/// The operands of a handler, in order, then checked for the batch dims of the result.
class Operands {
 public:
  Operands(ffi::RemainingArgs args, int64_t batch_rank, cadre_device device) {
    for (size_t i = 0; i < args.size(); ++i) {
      auto buffer = args.get<ffi::AnyBuffer>(i);
      if (buffer.has_value()) views_.emplace_back(*buffer, batch_rank, device);
    }
  }
  size_t size() const { return views_.size(); }
  const BatchedView& operator[](size_t i) const { return views_[i]; }

 private:
  std::vector<BatchedView> views_;
};

/// A group_offset in host memory. -1, which the library refuses, for what fits no int64 and for
/// what is no integer.
inline int64_t host_offset(const void* value, cadre_dtype dtype) {
  switch (dtype) {
    case CADRE_I8:
      return *static_cast<const int8_t*>(value);
    case CADRE_U8:
      return *static_cast<const uint8_t*>(value);
    case CADRE_I16:
      return *static_cast<const int16_t*>(value);
    case CADRE_U16:
      return *static_cast<const uint16_t*>(value);
    case CADRE_I32:
      return *static_cast<const int32_t*>(value);
    case CADRE_U32:
      return *static_cast<const uint32_t*>(value);
    case CADRE_I64:
      return *static_cast<const int64_t*>(value);
    case CADRE_U64:
      return std::max<int64_t>(-1, static_cast<int64_t>(*static_cast<const uint64_t*>(value)));
    default:
      return -1;
  }
}

inline cadre_sizes sizes_at(const Place& place, const BatchedView& sizes, int64_t index,
                            const std::vector<int64_t>& batch) {
  return {sizes.data_at(index, batch), sizes.dtype(), place.device, sizes.shape()[0], CADRE_SIZES};
}

/// Group sizes and group_offset of one batch entry, as every op's args have them.
template <typename Args>
void set_groups(const Place& place, const BatchedView& sizes, const BatchedView& offset,
                int64_t index, const std::vector<int64_t>& batch, Args* args) {
  args->group_sizes = sizes_at(place, sizes, index, batch);
  const void* value = offset.data_at(index, batch);
  if (place.device.kind == CADRE_CUDA) {
    args->group_offset_on_device = value;
    args->group_offset_dtype = offset.dtype();
  } else {
    args->group_offset = host_offset(value, offset.dtype());
  }
}

inline cadre_call_options options_for(const Place& place, int64_t precision) {
  cadre_call_options options;
  cadre_call_options_init(&options, sizeof(options));
  options.stream = place.stream;
  options.workspace = place.workspace;
  options.workspace_size_bytes = place.workspace_size_bytes;
  options.precision = static_cast<int32_t>(precision);
  return options;
}

/// Runs `call(index)` for each batch entry until one fails.
template <typename Call>
ffi::Error for_each_entry(const Place& place, const std::vector<int64_t>& batch, Call call) {
  if (context() == nullptr) {
    return {ffi::ErrorCode::kFailedPrecondition, "cadre: import cadre.jax before running this"};
  }
  note_device(place);
  for (int64_t index = 0; index < entries(batch); ++index) {
    const cadre_status_code code = call(index);
    if (code != CADRE_OK) return to_error(code, place);
  }
  return ffi::Error::Success();
}

inline Place host_place(bool in_mesh) { return {{CADRE_CPU, 0}, nullptr, nullptr, 0, in_mesh}; }

inline Place cuda_place(void* stream, int32_t ordinal, ffi::Result<ffi::AnyBuffer> workspace) {
  return {{CADRE_CUDA, ordinal}, stream, workspace->untyped_data(), workspace->size_bytes()};
}

inline auto on_host() { return ffi::Ffi::Bind(); }

inline auto on_cuda() {
  return ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ctx<ffi::DeviceOrdinal>();
}

/// An attribute, or 0 where a handler has none of that name.
template <typename T>
T attribute(const ffi::Dictionary& attributes, const char* name) {
  const auto value = attributes.get<T>(name);
  return value.has_value() ? *value : T{};
}

/// The results of a handler but its workspace, which is the last one on CUDA.
inline std::vector<BatchedView> results_of(const Place& place, ffi::RemainingRets results,
                                           int64_t batch_rank) {
  std::vector<BatchedView> views;
  const size_t count = results.size() - (place.workspace != nullptr ? 1 : 0);
  for (size_t i = 0; i < count; ++i) {
    auto buffer = results.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) continue;
    prefer_large_pages(place, (*buffer)->untyped_data(), (*buffer)->size_bytes());
    views.emplace_back(**buffer, batch_rank, place.device);
  }
  return views;
}

/// A handler of any number of operands, results and attributes.
using Handler = ffi::Error (*)(const Place&, ffi::RemainingArgs, ffi::RemainingRets,
                               const ffi::Dictionary&);

template <Handler handler>
ffi::Error host(ffi::RemainingArgs args, ffi::RemainingRets rets, ffi::Dictionary attributes) {
  return handler(host_place(attribute<bool>(attributes, "in_mesh")), args, rets, attributes);
}

/// The last result is the workspace.
template <Handler handler>
ffi::Error cuda(void* stream, int32_t ordinal, ffi::RemainingArgs args, ffi::RemainingRets rets,
                ffi::Dictionary attributes) {
  const auto workspace = rets.get<ffi::AnyBuffer>(rets.size() - 1);
  if (!workspace.has_value()) return workspace.error();
  return handler(cuda_place(stream, ordinal, *workspace), args, rets, attributes);
}

}  // namespace cadre_jax

// The symbols of cadre_jax::name. A CUDA handler only launches, so XLA may record it into a command
// buffer.
#define CADRE_JAX_HANDLERS(name)                                                               \
  extern "C" CADRE_API XLA_FFI_Error* cadre_jax_##name##_cpu(XLA_FFI_CallFrame*);              \
  extern "C" CADRE_API XLA_FFI_Error* cadre_jax_##name##_cuda(XLA_FFI_CallFrame*);             \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(cadre_jax_##name##_cpu, cadre_jax::host<cadre_jax::name>,      \
                                cadre_jax::on_host().RemainingArgs().RemainingRets().Attrs()); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(cadre_jax_##name##_cuda, cadre_jax::cuda<cadre_jax::name>,     \
                                cadre_jax::on_cuda().RemainingArgs().RemainingRets().Attrs(),  \
                                {xla::ffi::Traits::kCmdBufferCompatible})
