// What the handlers share: the package's context, error mapping, the devices seen.
#pragma once

#include <cstddef>

#include "cadre/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace cadre_jax {

/// Where a call runs.
struct Place {
  cadre_device device;
  void* stream;
  void* workspace;
  size_t workspace_size_bytes;
  bool in_mesh = false;  ///< on the host, where other devices may wait for this one
};

/// The context that the package shares between its fronts; null before cadre_jax_use_context.
cadre_context* context();

/// Success, or the message of the failed call with XLA's matching code. In a mesh the message is
/// also written to stderr: the other devices wait in the next collective, and XLA ends the process
/// when its patience is over, without having raised anything.
xla::ffi::Error to_error(cadre_status_code code, const Place& place);

/// Asks the system to back a large result on the host with large pages. XLA maps such memory anew
/// for every call, and taking it page by page can cost more than the product that fills it.
void prefer_large_pages(const Place& place, void* data, size_t size_bytes);

/// Remembers a CUDA device so that cadre_jax_check can ask it.
void note_device(const Place& place);

}  // namespace cadre_jax

extern "C" {

/// Every later call uses this context; the package calls it once, before it registers the handlers.
CADRE_API void cadre_jax_use_context(cadre_context* context);

/// Waits for every CUDA device that a handler has run on and reports bad sizes met there.
CADRE_API cadre_status_code cadre_jax_check(void);
}
