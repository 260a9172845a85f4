// Which tile shapes find room on a device.
#pragma once

#include "cuda/device.h"

namespace cadre::sm80 {

/// So many blocks find room in a multiprocessor. The driver keeps 1 KB of each for itself.
template <typename Shape>
bool fits(const cuda::DeviceProperties& device) {
  return device.max_shared_bytes >= Shape::kSharedBytes &&
         device.shared_bytes_per_sm >= Shape::kBlocksOfSm * (Shape::kSharedBytes + 1024);
}

}  // namespace cadre::sm80
