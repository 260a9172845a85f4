// What the ways through a unit share.
#include "cpu/unit.h"

#include <algorithm>

#include "cpu/scratch.h"

namespace cadre::cpu {

RowTiles::RowTiles(int64_t rows, int64_t mr, int64_t first_rows_max)
    : rows_(rows),
      count_(first_rows_max == 0 ? ceil_div(rows, mr)
                                 : 1 + ceil_div(std::max<int64_t>(rows - first_rows_max, 0), mr)) {
  if (first_rows_max > 0 && count_ > 1) {
    first_rows_ = std::min(first_rows_max, ceil_div(rows, count_));
  }
}

Unit::Unit(const WorkUnit& unit, const GemmPlan& plan)
    : kernel(*plan.kernel),
      blocking(plan.blocking),
      threads(plan.threads),
      k(unit.item->k),
      a(unit, kernel),
      b(unit, kernel),
      sums(unit, kernel, a, b),
      rows(unit.m_end - unit.m_begin, kernel.mr, b.column_rows()),
      out(unit, kernel, b.column_rows() == 0) {}

bool take_scratch(const int64_t* sizes, size_t count, char** parts) {
  const auto padded = [](int64_t bytes) { return round_up(bytes, 64) + 64; };
  int64_t total = 0;
  for (size_t i = 0; i < count; ++i) total += padded(sizes[i]);
  Scratch* const scratch = Scratch::of_this_thread();
  if (scratch == nullptr) return false;
  auto* next = static_cast<char*>(scratch->reserve(static_cast<size_t>(total)));
  if (next == nullptr) return false;
  for (size_t i = 0; i < count; ++i) {
    parts[i] = next;
    next += padded(sizes[i]);
  }
  return true;
}

int64_t lines_of(const PrefetchWalk& walk) { return walk.rows_left * ceil_div(walk.row_bytes, 64); }

void prefetch_all(PrefetchWalk* walk) {
  for (; walk->rows_left > 0; --walk->rows_left) {
    for (int64_t byte = walk->column_bytes; byte < walk->row_bytes; byte += 64) {
      __builtin_prefetch(walk->row + byte, 0, 2);
    }
    walk->row += walk->stride_bytes;
    walk->column_bytes = 0;
  }
}

bool multiply_unit(const WorkUnit& unit, const GemmPlan& plan) {
  if (unit.turned) return multiply_turned(unit, plan);
  return unit.resident ? multiply_resident(unit, plan) : multiply_blocked(unit, plan);
}

}  // namespace cadre::cpu
