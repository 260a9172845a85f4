// The running sum over group sizes, shared by host and device. It never leaves [0, m].
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace cadre::plan {

/// Adds sizes one by one. From the first bad one on (negative, or a sum above m) every group counts
/// as empty and its rows as tail.
struct GroupScan {
  int64_t m;
  int64_t end = 0;
  bool bad = false;

  /// The rows the next group really has.
  CADRE_HOST_DEVICE int64_t add(int64_t size) {
    if (bad || size < 0 || size > m - end) {
      bad = true;
      return 0;
    }
    end += size;
    return size;
  }
};

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
