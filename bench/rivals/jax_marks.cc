// An XLA FFI handler that records a CUDA event on XLA's stream, where asked for behind a write of
// memory that empties the L2. Compiled by jax_marks.py; the driver is the one of the process.
#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;

using MemsetAsync = int (*)(uint64_t address, unsigned char value, size_t count, void* stream);
using EventRecord = int (*)(void* event, void* stream);

template <typename Function>
Function from_driver(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
  return driver == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(driver, name));
}

ffi::Error mark(void* stream, ffi::RemainingArgs /*args*/, ffi::RemainingRets /*results*/,
                int64_t event, int64_t flushed, int64_t flushed_bytes) {
  static const auto memset_async = from_driver<MemsetAsync>("cuMemsetD8Async");
  static const auto event_record = from_driver<EventRecord>("cuEventRecord");
  if (memset_async == nullptr || event_record == nullptr) {
    return ffi::Error::Internal("mark: libcuda.so.1 can't be loaded");
  }
  int code = 0;
  if (flushed_bytes > 0) {
    code =
        memset_async(static_cast<uint64_t>(flushed), 0, static_cast<size_t>(flushed_bytes), stream);
  }
  if (code == 0) code = event_record(reinterpret_cast<void*>(event), stream);
  if (code != 0) return ffi::Error::Internal("mark: CUDA error " + std::to_string(code));
  return ffi::Error::Success();
}

}  // namespace

extern "C" XLA_FFI_DEFINE_HANDLER_SYMBOL(cadre_bench_mark, mark,
                                         ffi::Ffi::Bind()
                                             .Ctx<ffi::PlatformStream<void*>>()
                                             .RemainingArgs()
                                             .RemainingRets()
                                             .Attr<int64_t>("event")
                                             .Attr<int64_t>("flushed")
                                             .Attr<int64_t>("flushed_bytes"));
