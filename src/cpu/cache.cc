// Cache detection: cpuid leaf 4 (Intel) or 0x8000001D (AMD), which have one format; sysconf
// elsewhere.
#include "cpu/cache.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <unistd.h>
#endif

namespace cadre::cpu {
namespace {

/// What nearly every core of the last ten years has at least; a wrong guess costs speed, never
/// correctness.
constexpr CacheSizes kCommon = {32 << 10, 512 << 10, 0};

#if defined(__x86_64__)
CacheSizes read_cpuid(unsigned leaf) {
  CacheSizes sizes{0, 0, 0};
  for (unsigned index = 0; index < 16; ++index) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(leaf, index, &a, &b, &c, &d)) break;
    const unsigned type = a & 0x1f;  // 0: no more, 1: data, 2: instructions, 3: both
    if (type == 0) break;
    if (type == 2) continue;
    const int64_t ways = int64_t{(b >> 22) & 0x3ff} + 1;
    const int64_t partitions = int64_t{(b >> 12) & 0x3ff} + 1;
    const int64_t line_bytes = int64_t{b & 0xfff} + 1;
    const int64_t bytes = ways * partitions * line_bytes * (int64_t{c} + 1);
    switch ((a >> 5) & 0x7) {
      case 1:
        sizes.l1_bytes = bytes;
        break;
      case 2:
        sizes.l2_bytes = bytes;
        break;
      case 3:
        sizes.l3_bytes = bytes;
        break;
      default:
        break;
    }
  }
  return sizes;
}
#endif

CacheSizes detect() {
  CacheSizes sizes{0, 0, 0};
#if defined(__x86_64__)
  sizes = read_cpuid(4);
  if (sizes.l1_bytes == 0) sizes = read_cpuid(0x8000001d);
#endif
#if defined(__linux__) && defined(_SC_LEVEL1_DCACHE_SIZE)
  if (sizes.l1_bytes <= 0) sizes.l1_bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  if (sizes.l2_bytes <= 0) sizes.l2_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (sizes.l3_bytes <= 0) sizes.l3_bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
  if (sizes.l1_bytes <= 0) sizes.l1_bytes = kCommon.l1_bytes;
  if (sizes.l2_bytes <= 0) sizes.l2_bytes = kCommon.l2_bytes;
  if (sizes.l3_bytes < 0) sizes.l3_bytes = kCommon.l3_bytes;
  return sizes;
}

}  // namespace

const CacheSizes& cache_sizes() {
  static const CacheSizes kSizes = detect();
  return kSizes;
}

}  // namespace cadre::cpu
