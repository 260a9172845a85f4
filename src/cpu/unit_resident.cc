// Few rows: all of A stays packed in cache and B passes once, straight from memory.
#include <algorithm>

#include "cpu/unit.h"

namespace cadre::cpu {
namespace {

/// Few threads read fastest in the order of addresses; more than these wait for memory together,
/// whose lanes rows and columns side by side fill better (16 threads: 1.1 to 2.1 times as fast).
constexpr int kThreadsInOrder = 4;
/// One row of A: a panel's part of a row of B must be worth reading and writing its sums for.
constexpr int64_t kMinStreamBytes = 128;

class ResidentUnit : Unit {
 public:
  using Unit::Unit;
  bool run();

 private:
  /// What of B is worked on at a time.
  struct Part {
    int64_t k, panels;
  };
  /// Panels that are worked on side by side, all of k before the next ones: some of a gate, the
  /// same of what it gates, and so on.
  struct Group {
    int64_t half, panel, panels;  ///< the first one is a number within its half
  };
  Group group_at(int64_t number) const {
    const int64_t panel = number / b.halves() * part_.panels;
    return {number % b.halves(), panel, std::min(part_.panels, b.panels() - panel)};
  }
  int64_t number_of(const Group& group) const { return group.half * b.panels() + group.panel; }

  void stream_parts();
  PrefetchWalk next_prefetch(int64_t part_k, int64_t index) const;
  void multiply_panel(int64_t k0, int64_t k_count, const Group& group, int64_t index, bool in_place,
                      int64_t ahead_bytes, PrefetchWalk* next);
  void stream_rows();
  void finish_streamed(int64_t panel, int64_t panels);
  bool stream_columns(const Part& part, int64_t panel, bool is_full);
  PrefetchWalk next_rows(const Part& part, int64_t k0, int64_t k_count, int64_t k_end,
                         int64_t panel, TileArgs* args) const;
  bool is_one_stream(int64_t panels) const;
  void multiply_part(KRange k_range, int64_t tile, int64_t panel, TileArgs* args) const;

  bool streams_in_order() const {
    return kernel.tuning.streams_in_order && threads <= kThreadsInOrder;
  }
  bool streams_rows_in_order() const { return kernel.tuning.rows_in_order && streams_in_order(); }
  int64_t a_panel_k() const { return kMaxGranules * kernel.granule_k; }

  Part part_{};
  char *a_packed_ = nullptr, *b_packed_ = nullptr, *acc_ = nullptr;
};

bool ResidentUnit::run() {
  const int64_t a_panels = std::max<int64_t>(ceil_div(k, a_panel_k()), 1);
  const bool streams = rows.count() == 1 && b.reads_rows();
  // Where B is contiguous along n, parts side by side keep to the same rows of memory.
  const int64_t side_by_side = std::max<int64_t>(blocking.row_bytes / b.panel_row_bytes(), 1);
  part_ = {.k = b.is_packed() ? b.packed_k_block() : std::max(blocking.part_k, sums.block_k()),
           .panels = b.lies_in_rows() ? std::min(side_by_side, b.panels()) : 1};
  const int64_t acc_panels = (streams ? b.panels() : part_.panels) * b.halves();
  const int64_t scaled_k = streams ? sums.block_k() : part_.k;
  const int64_t scaled_panels = streams ? acc_panels : part_.panels;
  const int64_t sizes[] = {a_panels * rows.count() * a_tile_bytes(kernel),
                           b.is_packed() ? 0 : b.panel_bytes(part_.k),
                           acc_panels * rows.count() * acc_tile_bytes(kernel),
                           out.bias_bytes(),
                           a.gather_bytes(kernel.mr, a_panel_k()),
                           sums.scratch_bytes(scaled_k, scaled_panels)};
  char* parts[std::size(sizes)];
  if (!take_scratch(sizes, parts)) return false;
  a_packed_ = parts[0], b_packed_ = parts[1], acc_ = parts[2];
  out.widen_bias(parts[3]);
  if (sizes[4] > 0) a.gather_in(parts[4]);
  sums.use(parts[5], scaled_panels);

  // A: all rows, in panels of as many k values as a packed row can hold.
  for (int64_t a_panel = 0; a_panel < a_panels; ++a_panel) {
    const int64_t k0 = a_panel * a_panel_k();
    for (int64_t tile = 0; tile < rows.count(); ++tile) {
      a.pack(rows.begin(tile), rows.rows_of(tile), k0, std::min(a_panel_k(), k - k0),
             a_packed_ + (a_panel * rows.count() + tile) * a_tile_bytes(kernel));
    }
  }
  if (streams) {
    stream_rows();
  } else {
    stream_parts();
  }
  return true;
}

/// B passes in parts, all of k for some panels before the next. Each panel of a part is packed
/// (by the first row tile, if it can read it as it lies) and used at once, while the next part is
/// on its way from memory.
void ResidentUnit::stream_parts() {
  const int64_t k_parts = std::max<int64_t>(ceil_div(k, part_.k), 1);
  const int64_t parts = k_parts * ceil_div(b.panels(), part_.panels) * b.halves();
  const int64_t tiles = rows.count();
  PrefetchWalk next;
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t k0 = i % k_parts * part_.k;
    const int64_t k_count = std::min(part_.k, k - k0);
    const Group group = group_at(i / k_parts), next_group = group_at((i + 1) / k_parts);
    const int64_t next_k0 = (i + 1) % k_parts * part_.k;
    const int64_t next_panel = number_of(next_group);
    const bool in_place = b.reads_in_place(k_count, tiles);
    const bool in_order = in_place && b.column_rows() > 0 && streams_in_order();
    if (in_order) {
      if (PrefetchWalk walk = next_prefetch(part_.k, i); walk.lines > 0) next = walk;
    } else if (i + 1 < parts && !in_place) {
      next = b.walk(next_k0, std::min(part_.k, k - next_k0), next_panel, next_group.panels);
      next.lines = ceil_div(lines_of(next), group.panels * tiles * prefetch_steps(k_count));
      // A single tile has too few steps to spread the prefetches over: ask before packing.
      if (tiles == 1) prefetch_all(&next);
    }
    const int64_t ahead_bytes =
        i + 1 < parts && !in_order ? b.at(next_k0, next_panel) - b.at(k0, number_of(group)) : 0;
    sums.prepare({k0, k_count}, number_of(group), group.panels);
    for (int64_t j = 0; j < group.panels; ++j) {
      multiply_panel(k0, k_count, group, j, in_place, ahead_bytes, &next);
    }
    if (!in_order) prefetch_all(&next);
  }
}

/// A panel of a part against all row tiles.
void ResidentUnit::multiply_panel(int64_t k0, int64_t k_count, const Group& group, int64_t index,
                                  bool in_place, int64_t ahead_bytes, PrefetchWalk* next) {
  const bool last = k0 + k_count >= k;
  const int64_t panel = number_of(group) + index;
  if (group.panel + index >= b.full_panels()) in_place = false;
  if (!in_place && !b.is_packed()) {
    b.pack(k0, k_count, panel, b_packed_, rows.count() == 1 ? ahead_bytes : 0);
  }
  const int64_t tile_bytes = acc_tile_bytes(kernel);
  char* const gate_acc = acc_ + index * rows.count() * tile_bytes;
  char* const panel_acc = gate_acc + group.half * part_.panels * rows.count() * tile_bytes;
  for (int64_t tile = 0; tile < rows.count(); ++tile) {
    TileArgs args{.b = b.is_packed() ? b.packed_at(k0, panel) : b_packed_,
                  .b_granule_bytes = b_granule_bytes(kernel),
                  .acc = panel_acc + tile * tile_bytes,
                  .acc_panel_bytes = tile_bytes,
                  .panels = 1,
                  .prefetch = next};
    if (in_place && tile == 0) {
      b.point_at(k0, panel, rows.count() > 1 ? b_packed_ : nullptr, &args);
      args.b_ahead_bytes = ahead_bytes;
    }
    const bool stored = last && out.point_at(rows.begin(tile), panel, &args);
    multiply_part({k0, k_count}, tile, panel, &args);
    if (!last || stored || group.half != b.halves() - 1) continue;
    out.finish({.row = rows.begin(tile),
                .rows = rows.rows_of(tile),
                .panel = group.panel + index,
                .panels = 1,
                .acc = static_cast<const char*>(args.acc),
                .gate_acc = group.half > 0 ? gate_acc + tile * tile_bytes : nullptr,
                .acc_panel_bytes = tile_bytes});
  }
}

/// Parts are prefetched some at a time. If part `index` is the first of some, this is the memory of
/// the next ones, in the order of addresses, spread over the products of these; otherwise no lines.
PrefetchWalk ResidentUnit::next_prefetch(int64_t part_k, int64_t index) const {
  const int64_t k_parts = std::max<int64_t>(ceil_div(k, part_k), 1);
  const int64_t parts =
      std::clamp<int64_t>(blocking.prefetch_bytes / (part_k * b.panel_row_bytes()), 1, k_parts);
  const int64_t first = index % k_parts;
  PrefetchWalk walk;
  walk.lines = 0;
  if (first % parts != 0) return walk;
  const int64_t end = std::min(first + parts, k_parts);
  const bool same_panel = end < k_parts;
  const int64_t k0 = same_panel ? end * part_k : 0;
  const Group group = group_at(index / k_parts + (same_panel ? 0 : 1));
  walk = b.walk(k0, std::min(parts * part_k, k - k0), number_of(group), group.panels);
  const int64_t steps = (end - first) * rows.count() * prefetch_steps(part_k);
  walk.lines = std::max<int64_t>(ceil_div(lines_of(walk), steps), 1);
  return walk;
}

/// A range of k of one row tile: a panel of A, or a part that divides one.
void ResidentUnit::multiply_part(KRange k_range, int64_t tile, int64_t panel,
                                 TileArgs* args) const {
  const auto [k0, k_count] = k_range;
  const int64_t inside = k0 % a_panel_k();
  const char* const packed_rows =
      a_packed_ + (k0 / a_panel_k() * rows.count() + tile) * a_tile_bytes(kernel);
  args->rows = rows.rows_of(tile);
  args->a = packed_rows + inside / kernel.granule_k * kernel.granule_bytes *
                              (kernel.interleaves_a ? args->rows : 1);
  args->granules = granules(k_count);
  args->first = k0 == 0;
  // The surplus is that of a whole panel of A: take it off with its last part.
  const bool ends = inside + k_count == a_panel_k() || k0 + k_count == k;
  args->a_surplus = ends ? surplus_of(packed_rows) : nullptr;
  sums.multiply(*args, k_range, rows.begin(tile), panel);
}

/// For a single row of A the sums of a whole row of B stay in L1, so it needs no rows of B side by
/// side, and where these follow one another B is one stream, which memory serves best.
bool ResidentUnit::is_one_stream(int64_t panels) const {
  return rows.rows() == 1 && kernel.granule_k == 1 && streams_rows_in_order() &&
         b.panel_row_bytes() >= kMinStreamBytes &&
         panels * b.panel_row_bytes() <= blocking.single_bytes && b.rows_are_dense(panels);
}

/// One row tile, and B as it lies: a few rows of it side by side and, of these, some panels before
/// the next rows, in address order. Columns and k values that fill no panel and no granule are
/// packed.
void ResidentUnit::stream_rows() {
  Part part{.k = blocking.stream_k,
            .panels = std::max<int64_t>(
                blocking.stream_bytes / (blocking.stream_k * b.panel_row_bytes()), 1)};
  // Halves that follow one another are rows of twice as many panels.
  const bool joined = b.halves() > 1 && b.halves_join();
  const int64_t streams = joined ? 1 : b.halves();
  const int64_t full = joined ? 2 * b.panels() : b.full_panels();
  if (is_one_stream(full)) part = {.k = 1, .panels = std::max<int64_t>(full, 1)};
  bool stored = false;
  for (int64_t half = 0; half < streams; ++half) {
    const int64_t first = half * b.panels();
    for (int64_t panel = 0; panel < full; panel += part.panels) {
      const int64_t panels = std::min(part.panels, full - panel);
      stored = stream_columns({part.k, panels}, first + panel, true);
      if (!stored && b.halves() == 1) finish_streamed(panel, panels);
    }
    if (joined || full == b.panels()) continue;
    stored = stream_columns({blocking.stream_k, 1}, first + full, false);
    if (!stored && b.halves() == 1) finish_streamed(full, 1);
  }
  if (b.halves() > 1) finish_streamed(0, b.panels());
}

/// The epilogue of panels whose sums are complete in both halves.
void ResidentUnit::finish_streamed(int64_t panel, int64_t panels) {
  const int64_t acc_bytes = acc_row_bytes(kernel) * rows.rows();
  const char* const gate = acc_ + panel * acc_bytes;
  const bool gated = b.halves() > 1;
  out.finish({.row = 0,
              .rows = rows.rows_of(0),
              .panel = panel,
              .panels = panels,
              .acc = gated ? gate + b.panels() * acc_bytes : gate,
              .gate_acc = gated ? gate : nullptr,
              .acc_panel_bytes = acc_bytes});
}

/// What is prefetched while k values [k0, k0 + k_count) are used, in parts: those of the next
/// part, in the order of addresses where a panel's part of a row is whole lines, else each row
/// behind its own. A single stream is the hardware's.
PrefetchWalk ResidentUnit::next_rows(const Part& part, int64_t k0, int64_t k_count, int64_t k_end,
                                     int64_t panel, TileArgs* args) const {
  if (part.k == 1) return {};
  if (!streams_rows_in_order() || b.panel_row_bytes() % 64 != 0) {
    args->b_ahead_bytes = blocking.stream_k * args->b_k_bytes;
    return {};
  }
  const int64_t next = k0 + part.k;
  PrefetchWalk walk = b.walk(next, std::min(k_count, k_end - next), panel, part.panels);
  walk.lines =
      ceil_div(ceil_div(walk.row_bytes, 64) * part.k, part.panels * prefetch_steps(part.k));
  return walk;
}

/// All of k for some panels, whole ones or the last, cut-off one. True where the kernel has stored
/// the results.
bool ResidentUnit::stream_columns(const Part& part, int64_t panel, bool is_full) {
  // A block of scales is read in one of both ways.
  const int64_t block_k = sums.block_k();
  const int64_t whole = block_k == 0 ? kernel.k_step : block_k;
  const int64_t source_k = !is_full ? 0 : k % kernel.k_step == 0 ? k : k / whole * whole;
  // No larger than its rows, so that the sums of all panels take little of L1.
  const int64_t acc_bytes = acc_row_bytes(kernel) * rows.rows();
  char* const first_acc = acc_ + panel * acc_bytes;
  bool stored = false;
  int64_t k0 = 0;
  do {
    const bool in_place = k0 < source_k;
    // As it lies, as much as packed rows of A hold; packed, a part.
    const int64_t most_k = block_k > 0 ? block_k : in_place ? a_panel_k() : part.k;
    const int64_t k_count = std::min(most_k, (in_place ? source_k : k) - k0);
    sums.prepare({k0, k_count}, panel, part.panels);
    const bool last = k0 + k_count >= k;
    TileArgs args{.acc = first_acc, .acc_panel_bytes = acc_bytes};
    if (in_place) {
      args.panels = part.panels;
      args.block_granules = granules(part.k);
      b.point_at(k0, panel, nullptr, &args);
      PrefetchWalk next = next_rows(part, k0, k_count, source_k, panel, &args);
      args.prefetch = &next;
      stored = last && out.point_at(0, panel, &args);
      multiply_part({k0, k_count}, 0, panel, &args);
    } else {
      PrefetchWalk none;
      args.prefetch = &none;
      args.panels = 1;
      args.b = b_packed_;
      args.b_granule_bytes = b_granule_bytes(kernel);
      for (int64_t i = panel; i < panel + part.panels; ++i) {
        b.pack(k0, k_count, i, b_packed_, 0);
        args.acc = acc_ + i * acc_bytes;
        stored = last && out.point_at(0, i, &args);
        multiply_part({k0, k_count}, 0, i, &args);
      }
    }
    k0 += k_count;
  } while (k0 < k);
  return stored;
}

}  // namespace

bool multiply_resident(const WorkUnit& unit, const GemmPlan& plan) {
  return ResidentUnit(unit, plan).run();
}

}  // namespace cadre::cpu
