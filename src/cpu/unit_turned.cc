// B contiguous along k, on kernels that can take its columns as they lie for the left factor of the
// product turned over: panels of A's rows stay packed in cache, and B passes once for them.
#include "cpu/unit_run.h"

namespace cadre::cpu {
namespace {

/// Up to so many rows, threads of a number that keeps memory busy only lose time by asking for what
/// they will read (16 threads: 4 to 6 %).
constexpr int64_t kFewRows = 16;
constexpr int kBusyThreads = 5;

}  // namespace

bool UnitRun::turned() {
  const int64_t row_panel_bytes = b_panel_bytes(item_.k);
  const int64_t row_panels = ceil_div(rows_, kernel_.nr);
  const int64_t most_panels = std::max<int64_t>(blocking_.a_bytes_max / row_panel_bytes, 1);
  const int64_t row_blocks = ceil_div(row_panels, most_panels);
  const int64_t block_rows = ceil_div(row_panels, row_blocks) * kernel_.nr;
  const int64_t column_bytes = b_.col_stride * static_cast<int64_t>(size_of(b_.dtype));
  const int64_t source_bytes = kernel_.nr * item_.k * static_cast<int64_t>(size_of(b_.dtype));
  const int64_t group_panels =
      std::clamp<int64_t>(blocking_.turned_b_bytes / source_bytes, 1, panels_);
  const int64_t sizes[] = {block_rows / kernel_.nr * row_panel_bytes,
                           block_rows / kernel_.nr * group_panels * acc_tile_bytes(), bias_bytes()};
  char* pieces[std::size(sizes)];
  if (!take_scratch(sizes, pieces)) return false;
  const auto [a_packed, acc, bias_memory] = pieces;
  bias_ = widen_bias(bias_memory);

  const bool prefetches = rows_ > kFewRows || threads_ < kBusyThreads;
  for (int64_t row = 0; row < rows_; row += block_rows) {
    const int64_t rows = std::min(block_rows, rows_ - row);
    pack_rows_turned(row, rows, a_packed);
    for (int64_t panel = 0; panel < panels_; panel += group_panels) {
      const int64_t panels = std::min(group_panels, panels_ - panel);
      // The next panels come from memory meanwhile; after the last ones the first, for other rows.
      const bool last = panel + panels == panels_;
      PrefetchWalk next;
      if (prefetches && (!last || row + rows < rows_)) {
        next = walk_over(0, item_.k, last ? 0 : panel + panels, group_panels);
      }
      const int64_t steps = ceil_div(rows, kernel_.nr) * panels * prefetch_steps(item_.k);
      next.lines = ceil_div(lines_of(next), steps);
      TileArgs args{.a = a_packed,
                    .a_panel_bytes = row_panel_bytes,
                    .b = element_at(b_, 0, panel * kernel_.nr),
                    .b_panel_bytes = kernel_.nr * column_bytes,
                    .acc = acc,
                    .acc_panel_bytes = acc_tile_bytes(),
                    .granules = granules_of(item_.k),
                    .panels = panels,
                    .rows = static_cast<int>(rows),
                    .prefetch = &next,
                    .b_column_bytes = column_bytes};
      const bool stored = point_at_out(row, panel, &args);
      kernel_.multiply_turned(args);
      for (int64_t done = 0; done < rows && !stored; done += kernel_.nr) {
        finish(row + done, static_cast<int>(std::min<int64_t>(kernel_.nr, rows - done)), panel,
               panels, acc + done / kernel_.nr * panels * acc_tile_bytes(), acc_tile_bytes());
      }
      prefetch_all(&next);
    }
  }
  return true;
}

/// Panels of rows as if they were columns of B.
void UnitRun::pack_rows_turned(int64_t row, int64_t rows, char* packed) const {
  for (int64_t done = 0; done < rows; done += kernel_.nr) {
    const MatrixRef from = part(a_, row + done, 0);
    const MatrixRef turned{from.data, from.dtype, from.col_stride, from.row_stride};
    const int64_t next_bytes =
        kernel_.nr * from.row_stride * static_cast<int64_t>(size_of(from.dtype));
    kernel_.pack_b(turned, item_.k, std::min<int64_t>(kernel_.nr, rows - done),
                   packed + done / kernel_.nr * b_panel_bytes(item_.k),
                   done + int64_t{2} * kernel_.nr <= rows ? next_bytes : 0);
  }
}

}  // namespace cadre::cpu
