// Tensor maps for operands that are lists of pointers: one for each group, made on the device.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cadre/status.h"
#include "cuda/launch.h"

namespace cadre::sm90 {

struct MappedList {
  void* const* pointers = nullptr;  ///< on the device; null: no list
  CUtensorMap pattern;
  CUtensorMap* maps = nullptr;
};

/// Plain: it travels as a kernel parameter.
struct MappedLists {
  MappedList lists[3];
  int64_t count = 0;  ///< groups: pointers of each list
  uint32_t* unaligned = nullptr;
};

/// maps[i] of each list becomes `pattern` with the base pointers[i]. *unaligned becomes 1 when a
/// pointer is no multiple of 16 bytes, whose map must not be used, else 0.
Status make_list_maps(const cuda::Launch& launch, const MappedLists& lists);

}  // namespace cadre::sm90
