// Tensor maps for operands that are lists of pointers: one for each group, made on the device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cadre/status.h"
#include "cuda/launch.h"

namespace cadre::sm90 {

/// maps[i] becomes `pattern` with the base pointers[i], for i < count. All pointers are device
/// memory and multiples of 16 bytes.
Status make_list_maps(const cuda::Launch& launch, const CUtensorMap& pattern, void* const* pointers,
                      int64_t count, CUtensorMap* maps);

}  // namespace cadre::sm90
