// Sizes of this machine's data caches.
#pragma once

#include <cstdint>

namespace cadre::cpu {

struct CacheSizes {
  int64_t l1_bytes;  ///< of one core
  int64_t l2_bytes;  ///< of one core
  int64_t l3_bytes;  ///< of the cores that share it; 0 where there is none
};

/// Detected once: cpuid, else the operating system, else common values.
const CacheSizes& cache_sizes();

}  // namespace cadre::cpu
