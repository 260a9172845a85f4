// Cutting products into work units: every output element once, and work for every thread under
// skew.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/work_units.h"

namespace cadre::cpu {
namespace {

GemmPlan plan_with(int threads) {
  const GemmKernel* kernel =
      find_kernel(available_isas().back(), DType::kF32, DType::kF32, DType::kF32);
  return {.kernel = kernel, .blocking = make_blocking(*kernel, cache_sizes()), .threads = threads};
}

GemmItem item_of(int64_t m, int64_t n, int64_t k) { return {.m = m, .n = n, .k = k}; }

TEST(CpuWorkUnits, CoverEveryElementOnce) {
  const std::vector<GemmItem> items = {item_of(1, 1, 1),      item_of(0, 100, 5),
                                       item_of(300, 700, 40), item_of(65, 1000, 900),
                                       item_of(7, 0, 5),      item_of(2000, 33, 0)};
  for (const int threads : {1, 2, 16}) {
    const std::vector<WorkUnit> units = make_work_units(items, {}, plan_with(threads));
    for (const GemmItem& item : items) {
      std::vector<int> visits(static_cast<size_t>(item.m * item.n), 0);
      for (const WorkUnit& unit : units) {
        if (unit.item != &item) continue;
        for (int64_t i = unit.m_begin; i < unit.m_end; ++i)
          for (int64_t j = unit.n_begin; j < unit.n_end; ++j)
            ++visits[static_cast<size_t>(i * item.n + j)];
      }
      EXPECT_TRUE(std::all_of(visits.begin(), visits.end(), [](int count) { return count == 1; }))
          << item.m << " x " << item.n << " with " << threads << " threads";
    }
  }
}

/// 90 % of the rows in one of 128 experts, or all in one, the rest empty: no thread waits for
/// another's large unit.
TEST(CpuWorkUnits, SkewLeavesNoThreadIdle) {
  std::vector<GemmItem> skewed(128, item_of(6, 1536, 2048));
  skewed[17].m = 7000;
  std::vector<GemmItem> single(128, item_of(0, 1536, 2048));
  single[3].m = 4096;
  for (const std::vector<GemmItem>& items : {skewed, single}) {
    for (const int threads : {2, 16, 64}) {
      double total = 0, largest = 0;
      for (const WorkUnit& unit : make_work_units(items, {}, plan_with(threads))) {
        const auto work = static_cast<double>(unit.m_end - unit.m_begin) *
                          static_cast<double>(unit.n_end - unit.n_begin);
        total += work;
        largest = std::max(largest, work);
      }
      EXPECT_LE(largest, 0.34 * total / threads) << threads << " threads";
    }
  }
}

/// Many threads are not equally fast: those that are done find small units until the last one is.
TEST(CpuWorkUnits, TheLastOnesOfManyThreadsAreSmall) {
  constexpr int kThreads = 16;
  const std::vector<GemmItem> items(2, item_of(1024, 1536, 2048));
  GemmPlan plan = plan_with(kThreads);
  plan.units_per_thread = choose_units_per_thread(items, plan);
  const std::vector<WorkUnit> units = make_work_units(items, {}, plan);
  const auto work_of = [](const WorkUnit& unit) {
    return (unit.m_end - unit.m_begin) * (unit.n_end - unit.n_begin);
  };
  ASSERT_GT(units.size(), size_t{3 * kThreads});
  for (size_t i = units.size() - kThreads; i < units.size(); ++i)
    EXPECT_LE(work_of(units[i]), work_of(units[0]) * 3 / 10) << i;
}

/// Few rows: weights that are contiguous along k are read as fast in parts, others are not.
TEST(CpuWorkUnits, OfFewRowsTheLastOnesAreSmallWhereColumnsAreContiguous) {
  constexpr int kThreads = 16;
  constexpr int64_t kColumns = 1500, kK = 2048;
  for (const bool contiguous : {true, false}) {
    std::vector<GemmItem> items(100, item_of(4, kColumns, kK));
    for (GemmItem& item : items) {
      item.b.row_stride = contiguous ? 1 : kColumns;
      item.b.col_stride = contiguous ? kK : 1;
    }
    const std::vector<WorkUnit> units = make_work_units(items, {}, plan_with(kThreads));
    std::vector<int64_t> columns(items.size(), 0);
    for (const WorkUnit& unit : units) {
      EXPECT_TRUE(unit.resident);
      // Parts of a product come one after the other and meet.
      int64_t& end = columns[static_cast<size_t>(unit.item - items.data())];
      EXPECT_EQ(unit.n_begin, end);
      end = unit.n_end;
    }
    for (const int64_t end : columns) EXPECT_EQ(end, kColumns);
    if (!contiguous) {
      EXPECT_EQ(units.size(), items.size());
      continue;
    }
    ASSERT_GT(units.size(), items.size());
    for (size_t i = units.size() - kThreads; i < units.size(); ++i)
      EXPECT_LE(units[i].n_end - units[i].n_begin, kColumns * 3 / 10) << i;
  }
}

TEST(CpuBlocking, FitsTheCaches) {
  const CacheSizes& caches = cache_sizes();
  EXPECT_GE(caches.l1_bytes, 8 << 10);
  EXPECT_GE(caches.l2_bytes, caches.l1_bytes);
  for (const Isa isa : available_isas()) {
    for (const DType compute : {DType::kF32, DType::kF64, DType::kI32}) {
      const DType type = compute == DType::kI32 ? DType::kI8 : compute;
      const GemmKernel& kernel = *find_kernel(isa, type, type, compute);
      for (const CacheSizes sizes :
           {caches, CacheSizes{16 << 10, 128 << 10, 0}, CacheSizes{48 << 10, 2 << 20, 0}}) {
        const Blocking blocking = make_blocking(kernel, sizes);
        const int64_t granules = blocking.k_block / kernel.granule_k;
        EXPECT_LE(granules, kMaxGranules);
        EXPECT_EQ(blocking.k_block % kernel.granule_k, 0);
        EXPECT_LE(granules * kernel.nr * kernel.granule_bytes, blocking.b_bytes_max);
        EXPECT_LE(blocking.b_bytes_max, sizes.l2_bytes / 2);
        EXPECT_EQ(kMaxGranules * kernel.granule_k % blocking.piece_k, 0);
        EXPECT_EQ(kMaxGranules * kernel.granule_k % blocking.stream_k, 0);
      }
    }
  }
}

}  // namespace
}  // namespace cadre::cpu
