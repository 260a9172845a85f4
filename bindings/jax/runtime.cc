// The context the package handed over, error mapping, the streams seen.
#include "runtime.h"

#include <atomic>
#include <mutex>
#include <set>
#include <utility>

namespace cadre_jax {
namespace {

std::atomic<cadre_context*> shared_context = nullptr;
std::mutex streams_mutex;

std::set<std::pair<int32_t, void*>>& streams() {
  static std::set<std::pair<int32_t, void*>> seen;
  return seen;
}

}  // namespace

cadre_context* context() { return shared_context.load(); }

xla::ffi::Error to_error(cadre_status_code code) {
  using xla::ffi::ErrorCode;
  switch (code) {
    case CADRE_OK: return xla::ffi::Error::Success();
    case CADRE_INVALID: return {ErrorCode::kInvalidArgument, cadre_status_message()};
    case CADRE_UNSUPPORTED: return {ErrorCode::kUnimplemented, cadre_status_message()};
    default: return {ErrorCode::kInternal, cadre_status_message()};
  }
}

void note_stream(const Place& place) {
  if (place.device.kind != CADRE_CUDA) return;
  const std::scoped_lock lock(streams_mutex);
  streams().emplace(place.device.index, place.stream);
}

}  // namespace cadre_jax

void cadre_jax_use_context(cadre_context* context) { cadre_jax::shared_context = context; }

cadre_status_code cadre_jax_check(void) {
  const std::scoped_lock lock(cadre_jax::streams_mutex);
  for (const auto& [index, stream] : cadre_jax::streams()) {
    const cadre_status_code code =
        cadre_check(cadre_jax::context(), cadre_device{CADRE_CUDA, index}, stream);
    if (code != CADRE_OK) return code;
  }
  return CADRE_OK;
}
