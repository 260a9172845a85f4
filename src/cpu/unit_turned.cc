// B contiguous along k, on kernels that can take its columns as they lie for the left factor of the
// product turned over: panels of A's rows stay packed in cache, and B passes once for them.
#include <algorithm>

#include "cpu/unit.h"

namespace cadre::cpu {
namespace {

/// Up to so many rows, threads of a number that keeps memory busy only lose time by asking for what
/// they will read (16 threads: 4 to 6 %).
constexpr int64_t kFewRows = 16;
constexpr int kBusyThreads = 5;

class TurnedUnit : Unit {
 public:
  using Unit::Unit;

  bool run() {
    const int64_t row_panel_bytes = b.panel_bytes(k);
    const int64_t row_panels = ceil_div(rows.rows(), kernel.nr);
    const int64_t most_panels = std::max<int64_t>(blocking.a_bytes_max / row_panel_bytes, 1);
    const int64_t row_blocks = ceil_div(row_panels, most_panels);
    const int64_t block_rows = ceil_div(row_panels, row_blocks) * kernel.nr;
    const int64_t source_bytes = k * b.panel_row_bytes();
    group_panels_ = std::clamp<int64_t>(blocking.turned_b_bytes / source_bytes, 1, b.panels());
    const int64_t sizes[] = {
        block_rows / kernel.nr * row_panel_bytes,
        block_rows / kernel.nr * group_panels_ * b.halves() * acc_tile_bytes(kernel),
        out.bias_bytes()};
    char* parts[std::size(sizes)];
    if (!take_scratch(sizes, parts)) return false;
    const auto [a_packed, acc, bias] = parts;
    out.widen_bias(bias);
    for (int64_t row = 0; row < rows.rows(); row += block_rows) {
      const int64_t count = std::min(block_rows, rows.rows() - row);
      a.pack_turned(row, count, k, a_packed, row_panel_bytes);
      for (int64_t panel = 0; panel < b.panels(); panel += group_panels_) {
        multiply_group(row, count, panel, a_packed, acc);
      }
    }
    return true;
  }

 private:
  /// Some rows and some panels of each half. The next panels come from memory meanwhile; after the
  /// last ones the first, for other rows.
  void multiply_group(int64_t row, int64_t count, int64_t panel, const char* a_packed, char* acc) {
    const int64_t panels = std::min(group_panels_, b.panels() - panel);
    const int64_t half_bytes = ceil_div(count, kernel.nr) * panels * acc_tile_bytes(kernel);
    bool stored = false;
    for (int64_t half = 0; half < b.halves(); ++half) {
      stored = multiply_half(row, count, panel, half, a_packed, acc + half * half_bytes);
    }
    const char* const last_half = acc + (b.halves() - 1) * half_bytes;
    for (int64_t done = 0; done < count && !stored; done += kernel.nr) {
      const int64_t offset = done / kernel.nr * panels * acc_tile_bytes(kernel);
      out.finish({.row = row + done,
                  .rows = static_cast<int>(std::min<int64_t>(kernel.nr, count - done)),
                  .panel = panel,
                  .panels = panels,
                  .acc = last_half + offset,
                  .gate_acc = b.halves() > 1 ? acc + offset : nullptr,
                  .acc_panel_bytes = acc_tile_bytes(kernel)});
    }
  }

  /// Their products; true where the kernel has stored the results.
  bool multiply_half(int64_t row, int64_t count, int64_t panel, int64_t half, const char* a_packed,
                     char* acc) {
    const int64_t panels = std::min(group_panels_, b.panels() - panel);
    const bool last = panel + panels == b.panels();
    const bool prefetches = rows.rows() > kFewRows || threads < kBusyThreads;
    PrefetchWalk next;
    if (prefetches && (!last || row + count < rows.rows())) {
      next = b.walk(0, k, half * b.panels() + (last ? 0 : panel + panels), group_panels_);
    }
    const int64_t steps = ceil_div(count, kernel.nr) * panels * prefetch_steps(k);
    next.lines = ceil_div(lines_of(next), steps);
    TileArgs args{.a = a_packed,
                  .a_panel_bytes = b.panel_bytes(k),
                  .b = b.at(0, half * b.panels() + panel),
                  .b_panel_bytes = kernel.nr * b.column_bytes(),
                  .acc = acc,
                  .acc_panel_bytes = acc_tile_bytes(kernel),
                  .granules = granules(k),
                  .panels = panels,
                  .rows = static_cast<int>(count),
                  .prefetch = &next,
                  .b_column_bytes = b.column_bytes()};
    const bool stored = out.point_at(row, panel, &args);
    kernel.multiply_turned(args);
    prefetch_all(&next);
    return stored;
  }

  int64_t group_panels_ = 1;
};

}  // namespace

bool multiply_turned(const WorkUnit& unit, const GemmPlan& plan) {
  return TurnedUnit(unit, plan).run();
}

}  // namespace cadre::cpu
