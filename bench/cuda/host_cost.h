// What a call through the C API costs the host.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "bench/cuda/measurement.h"

namespace cadre::bench {

/// Of the forward and the weight gradient of a small layer, so that the GPU keeps up, and of the
/// launch of an empty kernel, since hosts differ. Throws when a call fails.
std::vector<HostCost> measure_host_cost(cudaStream_t stream);

}  // namespace cadre::bench
