// What a kernel reports of arguments that only the device knows.
#pragma once

#include <cstdint>

namespace cadre::plan {

/// What a device status word holds: the first fault met since it was last reported.
enum class DeviceFault : int32_t {
  kNone = 0,
  kNegativeSize = 1,
  kSumAboveRows = 2,
  kGroupOffset = 3,  ///< group_offset < 0 or group_offset + local groups above num_groups
  kSumNotRows = 4,   ///< tail is forbidden and the sum isn't m
  kExtent = 5,       ///< grouped_gemm: a per-group dimension or offset out of range or unequal
  kRowIndex = 6,     ///< a row index below -1 or beyond the rows there are
};

}  // namespace cadre::plan
