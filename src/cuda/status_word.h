// The status word of a device: kernels keep the first fault they meet in it, check() reports
// and clears it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cadre/context.h"
#include "plan/context_state.h"

namespace cadre::cuda {

/// Waits for the stream (null: for the whole device), then reports the fault kept in the device's
/// status word, if any, and clears it.
Status check_status_word(detail::ContextState& context, int32_t device_index, cudaStream_t stream);

}  // namespace cadre::cuda
