// Cutting products into work units: every output element once, and work for every thread under
// skew.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cpu/gemm_item.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/work_units.h"

namespace cadre::cpu {
namespace {

GemmPlan plan_with(int threads, Isa isa = available_isas().back()) {
  const GemmKernel* kernel = find_kernel(isa, DType::kF32, DType::kF32, DType::kF32);
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

/// The products of a gmm as the backend sees them, and the plan with which its driver cuts them.
struct DrivenCall {
  LoweredCall lowered;
  GemmPlan plan;
  std::vector<WorkUnit> units;

  DrivenCall(const std::vector<int64_t>& group_sizes, const GemmPlan& cut_with) : plan(cut_with) {
    constexpr int64_t kK = 2048, kN = 1536;
    plan::Problem problem;
    problem.op = plan::Op::kGmm;
    problem.k = kK;
    problem.n = kN;
    problem.num_groups = problem.num_local_groups = static_cast<int64_t>(group_sizes.size());
    plan::Operands operands;
    operands.host_offsets = {0};
    for (const int64_t rows : group_sizes) operands.host_offsets.push_back(problem.m += rows);
    // Nothing is multiplied: the views have shapes and strides but no elements to point at.
    operands.lhs = TensorView::contiguous(nullptr, DType::kF32, {problem.m, kK});
    operands.rhs = TensorView::contiguous(nullptr, DType::kF32, {problem.num_groups, kK, kN});
    operands.out = TensorView::contiguous(nullptr, DType::kF32, {problem.m, kN});
    operands.epilogue.c = operands.out;
    lower(problem, operands, &lowered);
    plan.units_per_thread = choose_units_per_thread(lowered.items, plan);
    units = make_work_units(lowered.items, {}, plan);
  }

  /// Multiply-adds until the last thread is done, each taking the next unit when it is free, over
  /// those of a perfect cut.
  double end_over_perfect() const {
    std::vector<double> busy(static_cast<size_t>(plan.threads), 0.0);
    double total = 0;
    for (const WorkUnit& unit : units) {
      const auto work =
          static_cast<double>((unit.m_end - unit.m_begin) * (unit.n_end - unit.n_begin));
      total += work;
      *std::min_element(busy.begin(), busy.end()) += work;
    }
    return *std::max_element(busy.begin(), busy.end()) * plan.threads / total;
  }
};

/// No thread waits long for another's last unit, whoever has the rows. Nothing is multiplied, so
/// that tiles of instruction sets this machine lacks are cut too.
TEST(CpuWorkUnits, SkewLeavesNoThreadIdle) {
  std::vector<int64_t> most_in_one(128, 6);
  most_in_one[17] = 127 * 6 * 9;  // 90 %
  std::vector<int64_t> all_in_one(128, 0);
  all_in_one[3] = 4096;
  const struct {
    std::vector<int64_t> sizes;
    std::vector<int> threads;
  } cases[] = {
      {most_in_one, {2, 16, 64}}, {all_in_one, {2, 16, 64}}, {{1024, 1024, 1024}, {2, 16}}};
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    for (const auto& [sizes, thread_counts] : cases) {
      const auto with_rows =
          std::count_if(sizes.begin(), sizes.end(), [](int64_t rows) { return rows > 0; });
      for (const int threads : thread_counts) {
        const DrivenCall call(sizes, plan_with(threads, isa));
        EXPECT_EQ(static_cast<int64_t>(call.lowered.items.size()), with_rows);
        EXPECT_LE(call.end_over_perfect(), 1.05)
            << name_of(isa) << ", " << with_rows << " of " << sizes.size() << " experts, "
            << threads << " threads, " << call.units.size() << " units";
      }
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
        EXPECT_EQ(kMaxGranules * kernel.granule_k % blocking.part_k, 0);
        EXPECT_EQ(kMaxGranules * kernel.granule_k % blocking.stream_k, 0);
      }
    }
  }
}

}  // namespace
}  // namespace cadre::cpu
