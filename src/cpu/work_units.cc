// Units are cut so that skewed routing (one expert with nearly all rows) still gives every thread
// work.
#include "cpu/work_units.h"

#include <algorithm>

namespace cadre::cpu {
namespace {

/// With this many units for each thread the last ones finish within a few percent of each other.
constexpr int64_t kUnitsPerThread = 6;
/// Below this a unit costs more to hand out and to pack for than it saves.
constexpr int64_t kMinUnitColumns = 128;
constexpr int64_t kMinUnitRows = 128;
/// From this many units on it is cheaper to fetch packed panels from the core that packed them than
/// to pack them again.
constexpr int64_t kMinSharingUnits = 8;
/// From about three row tiles on a packed block of B pays for itself.
constexpr int64_t kMaxResidentRows = 48;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

double cost_of(const GemmItem& item) {
  return static_cast<double>(item.m) * static_cast<double>(item.n) *
         static_cast<double>(item.k + 16);
}

/// Bytes of all of A packed.
int64_t packed_a_bytes(const GemmItem& item, const GemmKernel& kernel) {
  return item.m * ceil_div(item.k, kernel.granule_k) * kernel.granule_bytes;
}

struct Cut {
  int64_t rows, columns;  ///< pieces
};

bool stays_resident(const GemmItem& item, const GemmPlan& plan) {
  return item.m <= kMaxResidentRows &&
         packed_a_bytes(item, *plan.kernel) <= plan.blocking.a_bytes_max;
}

int64_t wanted_units(const GemmItem& item, double total, const GemmPlan& plan) {
  if (plan.threads == 1) return 1;
  const double unit_cost = total / static_cast<double>(plan.threads * kUnitsPerThread);
  return static_cast<int64_t>(cost_of(item) / std::max(unit_cost, 1.0)) + 1;
}

/// Columns first: a narrower block of B is still packed once, by the thread that uses it. Rows
/// where that isn't enough.
Cut cut_of(const GemmItem& item, double total, const GemmPlan& plan) {
  const GemmKernel& kernel = *plan.kernel;
  const int64_t panels = ceil_div(item.n, kernel.nr);
  const int64_t wanted = wanted_units(item, total, plan);
  const int64_t most_columns = std::min(std::max<int64_t>(item.n / kMinUnitColumns, 1), panels);
  if (stays_resident(item, plan)) return {1, std::min(wanted, most_columns)};
  Cut cut{ceil_div(item.m, plan.blocking.m_block), 1};
  if (cut.rows * cut.columns >= wanted) return cut;
  cut.columns =
      std::clamp(ceil_div(wanted, cut.rows), cut.columns, std::max(most_columns, cut.columns));
  const int64_t most_rows = std::max(item.m / kMinUnitRows, cut.rows);
  cut.rows = std::clamp(ceil_div(wanted, cut.columns), cut.rows, most_rows);
  return cut;
}

}  // namespace

double total_work(const std::vector<GemmItem>& items) {
  double total = 0;
  for (const GemmItem& item : items) total += cost_of(item);
  return total;
}

bool shares_packed_b(const GemmItem& item, double total, const GemmPlan& plan) {
  if (plan.threads == 1 || item.m == 0 || item.n == 0 || stays_resident(item, plan)) return false;
  return cut_of(item, total, plan).rows >= kMinSharingUnits;
}

std::vector<WorkUnit> make_work_units(const std::vector<GemmItem>& items,
                                      const std::vector<const PackedMatrix*>& packed,
                                      const GemmPlan& plan) {
  const GemmKernel& kernel = *plan.kernel;
  const double total = total_work(items);
  std::vector<WorkUnit> units;
  for (size_t index = 0; index < items.size(); ++index) {
    const GemmItem& item = items[index];
    if (item.m == 0 || item.n == 0) continue;
    const Cut cut = cut_of(item, total, plan);
    const int64_t panels = ceil_div(item.n, kernel.nr);
    const int64_t row_tiles = ceil_div(item.m, kernel.mr);
    for (int64_t j = 0; j < cut.columns; ++j) {
      for (int64_t i = 0; i < cut.rows; ++i) {
        const WorkUnit unit{.item = &item,
                            .m_begin = row_tiles * i / cut.rows * kernel.mr,
                            .m_end = std::min(row_tiles * (i + 1) / cut.rows * kernel.mr, item.m),
                            .n_begin = panels * j / cut.columns * kernel.nr,
                            .n_end = std::min(panels * (j + 1) / cut.columns * kernel.nr, item.n),
                            .packed = packed.empty() ? nullptr : packed[index],
                            .resident = stays_resident(item, plan)};
        if (unit.m_begin < unit.m_end && unit.n_begin < unit.n_end) units.push_back(unit);
      }
    }
  }
  if (plan.threads > 1) {
    const auto unit_work = [](const WorkUnit& u) {
      return static_cast<double>(u.m_end - u.m_begin) * static_cast<double>(u.n_end - u.n_begin) *
             static_cast<double>(u.item->k + 16);
    };
    std::stable_sort(units.begin(), units.end(), [&](const WorkUnit& a, const WorkUnit& b) {
      return unit_work(a) > unit_work(b);
    });
  }
  return units;
}

}  // namespace cadre::cpu
