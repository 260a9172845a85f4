// Units are cut so that skewed routing (one expert with nearly all rows) still gives every thread
// work.
#include "cpu/work_units.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <utility>

#include "cpu/panel_sizes.h"

namespace cadre::cpu {
namespace {

/// Below this a unit costs more to hand out and to pack for than it saves.
constexpr int64_t kMinUnitColumns = 128;
constexpr int64_t kMinUnitRows = 128;
/// From this many units on it is cheaper to fetch packed panels from the core that packed them than
/// to pack them again.
constexpr int64_t kMinSharingUnits = 8;
/// From about three row tiles on a packed block of B pays for itself.
constexpr int64_t kMaxResidentRows = 48;

/// Multiply-adds of tiles that take as long as reading a value of B that isn't packed.
constexpr int kReadCost = 5;

/// The part of a unit that threads wait for the last one of them. Two threads are nearly equal; the
/// more there are, the more likely is one that shares its core or is held up: 4, 8 and 16 threads
/// of a virtual machine waited for 0.17, 0.22 and 0.45 units. At most half of one: a thread that
/// shares its core takes twice as long, and the others begin their last units at any time.
constexpr double kStragglingOfTwo = 0.01, kStragglingOfMore = 0.03, kMaxStraggling = 0.5;

/// One of so many units, at most so many for each thread, the last ones, are cut once more, so that
/// threads which finish early find some work.
constexpr size_t kLastOfUnits = 5, kLastOfThread = 2;

double straggling(int threads) {
  return std::min(kStragglingOfTwo + kStragglingOfMore * (threads - 2), kMaxStraggling);
}

/// Columns that are cut: those of the result where each takes one of either half of B.
int64_t cut_columns(const GemmItem& item) { return item.is_paired() ? item.n / 2 : item.n; }

/// Panels of a matrix that was packed as a whole start at both halves.
bool takes_packed(const GemmItem& item, const GemmKernel& kernel) {
  return !item.is_paired() || item.result_cols() % kernel.nr == 0;
}

double cost_of(const GemmItem& item) {
  return static_cast<double>(item.m) * static_cast<double>(item.n) *
         static_cast<double>(item.k + 16);
}

/// Bytes of all of A packed. In floating point: a broadcast A may claim any m and k.
double packed_a_bytes(const GemmItem& item, const GemmKernel& kernel) {
  return static_cast<double>(item.m) *
         static_cast<double>(ceil_div(item.k, kernel.granule_k) * kernel.granule_bytes);
}

struct Cut {
  int64_t rows, columns;  ///< units
};

bool stays_resident(const GemmItem& item, const GemmPlan& plan) {
  return item.m <= kMaxResidentRows &&
         packed_a_bytes(item, *plan.kernel) <= static_cast<double>(plan.blocking.a_bytes_max);
}

/// The kernel can take B as it lies as the left factor of a product turned over.
bool is_turned(const GemmItem& item, const PackedMatrix* packed, const GemmKernel& kernel) {
  return kernel.multiply_turned != nullptr && packed == nullptr && item.k > 0 &&
         !item.b_rows.given() && item.b.dtype == kernel.source_dtype && item.b.row_stride == 1 &&
         item.b.col_stride != 1 && item.k % kernel.k_step == 0 &&
         cut_columns(item) % kernel.nr == 0;
}

int64_t wanted_units(const GemmItem& item, double total, const GemmPlan& plan) {
  if (plan.threads == 1) return 1;
  const double wanted_cost = total / static_cast<double>(plan.threads * plan.units_per_thread);
  // A hair more than a whole number of units is none more.
  return std::max<int64_t>(
      static_cast<int64_t>(std::ceil(cost_of(item) / std::max(wanted_cost, 1.0) - 0.01)), 1);
}

/// Multiply-adds of a unit and, in the same currency, packing its rows of A and columns of B, or
/// reading these.
double unit_cost(int64_t rows, int64_t columns, const GemmItem& item, const GemmPlan& plan) {
  const int row_cost = plan.kernel->tuning.pack_cost;
  const int column_cost = is_turned(item, nullptr, *plan.kernel) ? kReadCost : row_cost;
  const int64_t of_b = columns * (item.is_paired() ? 2 : 1);
  return static_cast<double>(rows * of_b + row_cost * rows + column_cost * of_b) *
         static_cast<double>(item.k + 16);
}

/// Of the largest unit.
double unit_cost(const GemmItem& item, const Cut& cut, const GemmPlan& plan) {
  const GemmKernel& kernel = *plan.kernel;
  const int64_t rows = ceil_div(ceil_div(item.m, kernel.mr), cut.rows) * kernel.mr;
  const int64_t columns = ceil_div(ceil_div(cut_columns(item), kernel.nr), cut.columns) * kernel.nr;
  return unit_cost(rows, columns, item, plan);
}

/// As many units as are wanted, or as there can be, in the shape that packs least.
Cut cut_of(const GemmItem& item, double total, const GemmPlan& plan) {
  const GemmKernel& kernel = *plan.kernel;
  const int64_t panels = ceil_div(cut_columns(item), kernel.nr);
  const int64_t wanted = wanted_units(item, total, plan);
  const int64_t most_columns =
      std::min(std::max<int64_t>(cut_columns(item) / kMinUnitColumns, 1), panels);
  if (stays_resident(item, plan)) return {1, std::min(wanted, most_columns)};
  const int64_t fewest_rows = ceil_div(item.m, plan.blocking.m_block);
  const int64_t most_rows = std::max(item.m / kMinUnitRows, fewest_rows);
  Cut best{most_rows, most_columns};
  double best_cost = 0;
  for (int64_t rows = fewest_rows; rows <= most_rows; ++rows) {
    const int64_t columns = ceil_div(wanted, rows);
    if (columns > most_columns) continue;
    const Cut cut{rows, std::max<int64_t>(columns, 1)};
    const double cost = unit_cost(item, cut, plan) * static_cast<double>(cut.rows * cut.columns);
    if (best_cost == 0 || cost < best_cost) best = cut, best_cost = cost;
    if (columns <= 1) break;
  }
  return best;
}

double cost_of(const WorkUnit& unit, const GemmPlan& plan) {
  return unit_cost(unit.m_end - unit.m_begin, unit.n_end - unit.n_begin, *unit.item, plan);
}

/// Quarters of its columns, where B is contiguous along k: parts are then read as fast as the
/// whole. Of a B that is contiguous along n, parts of rows would come more slowly (16 threads: 3 to
/// 5 %).
std::vector<WorkUnit> column_quarters_of(const WorkUnit& unit, const GemmKernel& kernel) {
  const int64_t columns = unit.n_end - unit.n_begin;
  const int64_t panels = ceil_div(columns, kernel.nr);
  const bool whole = unit.packed == nullptr && unit.item->b.col_stride == 1;
  const int64_t count = whole ? 1 : std::clamp<int64_t>(columns / kMinUnitColumns, 1, 4);
  std::vector<WorkUnit> parts(static_cast<size_t>(count), unit);
  for (int64_t i = 0; i < count; ++i) {
    WorkUnit& part = parts[static_cast<size_t>(i)];
    part.n_begin = unit.n_begin + panels * i / count * kernel.nr;
    part.n_end = std::min(unit.n_begin + panels * (i + 1) / count * kernel.nr, unit.n_end);
  }
  return parts;
}

/// Halves of its rows and of its columns, where these are as many as a unit must have. Few rows are
/// bound by reading B, once.
std::vector<WorkUnit> quarters_of(const WorkUnit& unit, const GemmKernel& kernel) {
  if (unit.resident) return column_quarters_of(unit, kernel);
  const int64_t tiles = ceil_div(unit.m_end - unit.m_begin, kernel.mr);
  const int64_t panels = ceil_div(unit.n_end - unit.n_begin, kernel.nr);
  int64_t m_middle = unit.m_begin + tiles / 2 * kernel.mr;
  int64_t n_middle = unit.n_begin + panels / 2 * kernel.nr;
  if (unit.m_end - unit.m_begin < kMinUnitRows) m_middle = unit.m_end;
  if (unit.n_end - unit.n_begin < kMinUnitColumns) n_middle = unit.n_end;
  std::vector<WorkUnit> parts;
  for (const auto& [n_begin, n_end] :
       {std::pair{unit.n_begin, n_middle}, std::pair{n_middle, unit.n_end}}) {
    for (const auto& [m_begin, m_end] :
         {std::pair{unit.m_begin, m_middle}, std::pair{m_middle, unit.m_end}}) {
      if (m_begin >= m_end || n_begin >= n_end) continue;
      parts.push_back(unit);
      parts.back().m_begin = m_begin, parts.back().m_end = m_end;
      parts.back().n_begin = n_begin, parts.back().n_end = n_end;
    }
  }
  return parts;
}

/// Where waiting for the last thread clearly costs more than what the parts pack beyond the whole
/// units: twice as much, since smaller units multiply a little slower too.
void cut_last_units(const GemmPlan& plan, std::vector<WorkUnit>* units) {
  const size_t count =
      std::min(units->size() / kLastOfUnits, kLastOfThread * static_cast<size_t>(plan.threads));
  const auto first = units->end() - static_cast<int64_t>(count);
  std::vector<WorkUnit> parts;
  double largest = 0, largest_part = 0, packed_more = 0;
  for (auto unit = first; unit != units->end(); ++unit) {
    const double cost = cost_of(*unit, plan);
    largest = std::max(largest, cost);
    packed_more -= cost;
    for (const WorkUnit& part : quarters_of(*unit, *plan.kernel)) {
      const double part_cost = cost_of(part, plan);
      largest_part = std::max(largest_part, part_cost);
      packed_more += part_cost;
      parts.push_back(part);
    }
  }
  const double waited = straggling(plan.threads) * (largest - largest_part);
  if (waited < 2 * packed_more / plan.threads) return;
  units->erase(first, units->end());
  units->insert(units->end(), parts.begin(), parts.end());
}

}  // namespace

double total_work(const std::vector<GemmItem>& items) {
  double total = 0;
  for (const GemmItem& item : items) total += cost_of(item);
  return total;
}

bool shares_packed_b(const GemmItem& item, double total, const GemmPlan& plan) {
  if (plan.threads == 1 || item.m == 0 || item.n == 0 || stays_resident(item, plan)) return false;
  if (is_turned(item, nullptr, *plan.kernel) || !takes_packed(item, *plan.kernel)) return false;
  return cut_of(item, total, plan).rows >= kMinSharingUnits;
}

int choose_units_per_thread(const std::vector<GemmItem>& items, const GemmPlan& plan) {
  const auto threads = static_cast<size_t>(plan.threads);
  // Many experts are units enough, and units of few rows pack little.
  const bool few = items.size() <= 8 * threads;
  const bool any_blocked = std::any_of(items.begin(), items.end(), [&](const GemmItem& item) {
    return item.m > 0 && item.n > 0 && !stays_resident(item, plan);
  });
  if (threads == 1 || !few || !any_blocked) return plan.units_per_thread;
  const double total = total_work(items);
  int best = plan.units_per_thread;
  double best_end = 0;
  for (const int candidate : {1, 2, 3, 4, 6}) {
    GemmPlan tried = plan;
    tried.units_per_thread = candidate;
    std::vector<double> costs;
    for (const GemmItem& item : items) {
      if (item.m == 0 || item.n == 0) continue;
      const Cut cut = cut_of(item, total, tried);
      costs.insert(costs.end(), static_cast<size_t>(cut.rows * cut.columns),
                   unit_cost(item, cut, tried));
    }
    std::sort(costs.begin(), costs.end(), std::greater<>());
    // Each unit, the largest first, goes to the thread that is free first.
    std::priority_queue<double, std::vector<double>, std::greater<>> free_at(
        std::greater<>(), std::vector<double>(threads, 0.0));
    double end = 0;
    for (const double cost : costs) {
      const double done = free_at.top() + cost;
      free_at.pop();
      free_at.push(done);
      end = std::max(end, done);
    }
    end += straggling(plan.threads) * costs.front();
    if (best_end == 0 || end < best_end) best = candidate, best_end = end;
  }
  return best;
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
    const int64_t columns = cut_columns(item);
    const int64_t panels = ceil_div(columns, kernel.nr);
    const int64_t row_tiles = ceil_div(item.m, kernel.mr);
    const bool is_packed = !packed.empty() && takes_packed(item, kernel);
    const PackedMatrix* const packed_b = is_packed ? packed[index] : nullptr;
    for (int64_t j = 0; j < cut.columns; ++j) {
      for (int64_t i = 0; i < cut.rows; ++i) {
        const WorkUnit unit{.item = &item,
                            .m_begin = row_tiles * i / cut.rows * kernel.mr,
                            .m_end = std::min(row_tiles * (i + 1) / cut.rows * kernel.mr, item.m),
                            .n_begin = panels * j / cut.columns * kernel.nr,
                            .n_end = std::min(panels * (j + 1) / cut.columns * kernel.nr, columns),
                            .packed = packed_b,
                            .resident = stays_resident(item, plan),
                            .turned = is_turned(item, packed_b, kernel)};
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
    cut_last_units(plan, &units);
  }
  return units;
}

}  // namespace cadre::cpu
