// The context the package handed over, error mapping, the devices seen.
#include "runtime.h"

#include <atomic>
#include <mutex>
#include <set>

namespace cadre_jax {
namespace {

std::atomic<cadre_context*> shared_context = nullptr;
std::mutex devices_mutex;

std::set<int32_t>& devices() {
  static std::set<int32_t> seen;
  return seen;
}

}  // namespace

cadre_context* context() { return shared_context.load(); }

xla::ffi::Error to_error(cadre_status_code code) {
  using xla::ffi::ErrorCode;
  switch (code) {
    case CADRE_OK:
      return xla::ffi::Error::Success();
    case CADRE_INVALID:
      return {ErrorCode::kInvalidArgument, cadre_status_message()};
    case CADRE_UNSUPPORTED:
      return {ErrorCode::kUnimplemented, cadre_status_message()};
    default:
      return {ErrorCode::kInternal, cadre_status_message()};
  }
}

void note_device(const Place& place) {
  if (place.device.kind != CADRE_CUDA) return;
  const std::scoped_lock lock(devices_mutex);
  devices().insert(place.device.index);
}

}  // namespace cadre_jax

void cadre_jax_use_context(cadre_context* context) { cadre_jax::shared_context = context; }

cadre_status_code cadre_jax_check(void) {
  const std::scoped_lock lock(cadre_jax::devices_mutex);
  for (int32_t index : cadre_jax::devices()) {
    const cadre_device device = {CADRE_CUDA, index};
    const cadre_status_code code = cadre_check(cadre_jax::context(), device, nullptr);
    if (code != CADRE_OK) return code;
  }
  return CADRE_OK;
}
