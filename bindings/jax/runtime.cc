// The context the package handed over, error mapping, large pages, the devices seen.
#include "runtime.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
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

xla::ffi::Error to_error(cadre_status_code code, const Place& place) {
  using xla::ffi::ErrorCode;
  if (code != CADRE_OK && place.in_mesh) {
    std::fprintf(stderr,
                 "cadre: %s\ncadre: this is on one device of a mesh; where the others wait for it "
                 "in a collective, XLA will end the process\n",
                 cadre_status_message());
  }
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

void prefer_large_pages(const Place& place, void* data, size_t size_bytes) {
#if defined(MADV_HUGEPAGE)
  // Smaller blocks come from the heap and have been used before.
  constexpr size_t kFromBytes = size_t{4} << 20;
  constexpr uintptr_t kPageBytes = uintptr_t{1} << 21;
  if (place.device.kind != CADRE_CPU || size_bytes < kFromBytes) return;
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto end = (reinterpret_cast<uintptr_t>(data) + size_bytes) / kPageBytes * kPageBytes;
  // A hint: where it is refused, the pages stay small.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)place, (void)data, (void)size_bytes;
#endif
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
