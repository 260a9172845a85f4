// The block sizes and where they come from.
#include "cpu/blocking.h"

#include <algorithm>
#include <bit>

namespace cadre::cpu {
namespace {

int64_t round_down(int64_t value, int64_t unit) { return std::max(value / unit * unit, unit); }

}  // namespace

Blocking make_blocking(const GemmKernel& kernel, const CacheSizes& caches) {
  Blocking blocking;
  // A panel of A (mr rows of a k block) is used against every panel of B in turn and should stay in
  // L1: half of it, the other half is for the panel of B that passes through. 16 granules are a
  // cache line of A and the period of the prefetches; 14 rows in 32 KiB give 292 granules, rounded
  // down to 288.
  const int64_t row_bytes = int64_t{kernel.mr} * kernel.granule_bytes;
  // At least 256, whatever the tile: accumulators are read and written once for a block, and AMX
  // tiles (32 rows) would otherwise spend a tenth of their time on that.
  const int64_t in_l1 = std::max<int64_t>(round_down(caches.l1_bytes / 2 / row_bytes, 16), 256);
  const int64_t granules = std::min(in_l1, kMaxGranules);
  blocking.k_block = granules * kernel.granule_k;
  // The packed block of B (k block x some panels) is used by every panel of A and should stay in
  // L2, with room for the source of the next block, which is prefetched meanwhile, and for the
  // accumulators that pass: half.
  blocking.b_bytes_max = caches.l2_bytes / 2;
  // Rows beyond this only add accumulators (m_block x columns, read and written once for each k
  // block from L3); packing a block of B costs about as much as 20 rows of multiplication, 2 % of
  // these.
  blocking.m_block = 1024;
  // A that is packed once for all columns is read back from L3, which the threads share; where
  // there is none, or too little, it is packed again for each block of columns. Kept, its panels
  // may be as long as a packed row can be, since they come from L2 anyway, and sums then pass
  // through memory half as often; and few columns at a time do, which leaves half of L2 to the
  // accumulators of m_block rows (1024 x 128 x 4 bytes) and a quarter to what passes.
  blocking.a_kept_bytes_max = caches.l3_bytes / 2;
  blocking.kept_k_block = kernel.tuning.kept_granules * kernel.granule_k;
  blocking.kept_b_bytes_max = caches.l2_bytes / 4 * kernel.tuning.kept_granules / kMaxGranules;
  // Few rows: all of packed A stays in half of L2 while B passes once, panel by panel.
  blocking.a_bytes_max = caches.l2_bytes / 2;
  // A part of a panel of B is packed into half of L1 and used at once. A power of two divides
  // kMaxGranules, so no part crosses from one panel of A into the next.
  const int64_t part = caches.l1_bytes / 2 / (int64_t{kernel.nr} * kernel.granule_bytes);
  const auto part_granules = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(part)));
  blocking.part_k = std::clamp<int64_t>(part_granules, 16, kMaxGranules) * kernel.granule_k;
  // Where B is contiguous along n, parts side by side take this much of each of its rows: enough
  // for a memory page to be worth opening.
  blocking.row_bytes = 512;
  // Few rows, B as it lies: so many rows of it side by side. Accumulators are read and written once
  // for these; more than 32 are more streams than memory serves well.
  blocking.stream_k = std::max<int64_t>(
      std::min<int64_t>(16, 32 / kernel.granule_k) * kernel.granule_k, kernel.k_step);
  // While they are used, the same columns of the next rows are on their way into L2: a quarter of
  // it for each.
  blocking.stream_bytes = caches.l2_bytes / 4;
  // One row of A: the sums of a row of B of at most this stay in L1.
  blocking.single_bytes = caches.l1_bytes / 4;
  // Memory is fastest in the order of addresses, whatever the order of use: while a part of a
  // panel is used, the next one comes into L2, column after column. A quarter for each of the two.
  blocking.prefetch_bytes = caches.l2_bytes / 4;
  // Turned over, panels of B pass beside rows that fill half of L2: these and the next ones take a
  // small part of the rest, which another thread of the core may be using.
  blocking.turned_b_bytes = caches.l2_bytes / 16;
  return blocking;
}

}  // namespace cadre::cpu
