// How rows are cut into tiles of nearly the same height, for host and device.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace cadre::plan {

/// `slices` slices in `tiles` tiles, whose heights differ by one slice at most, the higher ones
/// first.
struct EvenCut {
  uint32_t slices;
  uint32_t tiles;

  CADRE_HOST_DEVICE void tile_at(int32_t tile, int32_t* first_slice, int32_t* height) const {
    const auto least = static_cast<int32_t>(slices / tiles);
    const auto higher = static_cast<int32_t>(slices - least * tiles);
    *first_slice = tile * least + (tile < higher ? tile : higher);
    *height = least + (tile < higher ? 1 : 0);
  }
};

}  // namespace cadre::plan
