// Threads take units from one counter until there are none.
#include "cpu/gemm_driver.h"

#include <atomic>

#include "cpu/gemm_unit.h"
#include "cpu/work_units.h"

namespace cadre::cpu {
namespace {

/// Below this many multiply-adds starting threads costs more than it saves.
constexpr double kMinParallelWork = 200e3;

}  // namespace

Status multiply_items(const std::vector<GemmItem>& items, const GemmPlan& plan) {
  double work = 0;
  for (const GemmItem& item : items) {
    work += static_cast<double>(item.m) * static_cast<double>(item.n) * static_cast<double>(item.k);
  }
  GemmPlan used = plan;
  if (work < kMinParallelWork) used.threads = 1;
  const std::vector<WorkUnit> units = make_work_units(items, used);
  const auto count = static_cast<int64_t>(units.size());
  std::atomic<int64_t> next{0};
  std::atomic<bool> out_of_memory{false};
  const auto take_units = [&] {
    for (;;) {
      const int64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      if (!multiply_unit(units[static_cast<size_t>(index)], used)) out_of_memory = true;
    }
  };
  if (used.threads == 1 || count <= 1) {
    take_units();
  } else {
#pragma omp parallel num_threads(used.threads)
    take_units();
  }
  if (out_of_memory) return Status::internal("cpu: no memory for packed panels");
  return {};
}

}  // namespace cadre::cpu
