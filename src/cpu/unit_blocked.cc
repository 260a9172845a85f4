// Many rows: a block of B is packed into L2 and used for all rows, which pass once for each block.
#include <algorithm>
#include <limits>

#include "cpu/block_cut.h"
#include "cpu/kernels/copy_walk.h"
#include "cpu/unit.h"

namespace cadre::cpu {
namespace {

/// The next rows of A are asked for during this many panels.
constexpr int64_t kRowPrefetchPanels = 2;
/// Lines of the next block of B in a prefetch step: few enough to leave the products alone.
constexpr int64_t kBlockPrefetchLines = 4;
/// Lines of each column that are on their way while the next block of B is packed.
constexpr int64_t kCopyAheadRows = 4;
/// The inner loop packs so many times as often as it prefetches.
constexpr int64_t kCopySteps = 4;
/// Lines of rows that are on their way while B is packed from them.
constexpr int64_t kRowAheadLines = 64;
/// All that is left of a walk.
constexpr int64_t kAllBatches = std::numeric_limits<int64_t>::max();

class BlockedUnit : Unit {
 public:
  BlockedUnit(const WorkUnit& unit, const GemmPlan& plan) : Unit(unit, plan), cut_(*this) {}
  bool run();

 private:
  /// Panels of the next block that are packed beside the products of this one.
  struct Beside {
    CopyWalk columns;
    RowWalk rows;
    int64_t panels = 0;
  };

  void pack_block(const Block& block, int64_t begin, char* packed) const;
  int64_t line_panels(const Block& block) const;
  RowWalk rows_of(const Block& block, char* packed) const;
  CopyWalk columns_of(const Block& block, char* packed) const;
  Beside beside_of(const Block& block, char* packed) const;

  void multiply_block(const Block& block, const Block& next, char* packed, Beside* beside);
  void multiply_panels(TileArgs args, const Block& block, int64_t tile, int64_t begin, int64_t end,
                       PrefetchWalk* first_walk, PrefetchWalk* walk) const;
  TileArgs packed_args(const Block& block, int64_t tile, const char* packed) const;
  void finish_tile(const Block& block, int64_t tile) const;
  PrefetchWalk packed_rows_behind(const Block& block, int64_t tile) const;

  bool takes_panels_in_turn(const Block& block) const;
  void multiply_by_panels(const Block& block, const Block& next, char* packed);
  void multiply_panel(const Block& block, int64_t index, const char* packed, PrefetchWalk* walk);

  bool packs_a(const Block& block) const { return !cut_.keeps_a || block.panel == 0; }
  void pack_a(const Block& block, int64_t tile) const {
    a.pack(rows.begin(tile), rows.rows_of(tile), block.k0, block.k, a_at(block, tile));
  }
  /// A row tile, packed.
  char* a_at(const Block& block, int64_t tile) const {
    const int64_t row = block.k_index * rows.rows() + rows.begin(tile);
    return a_memory_ + (cut_.keeps_a ? row * a_row_bytes(kernel) : 0);
  }
  /// Its sums. Those of a gate stay until what it gates is there.
  char* acc_at(const Block& block, int64_t tile) const {
    return acc_ + block.half * gate_bytes_ + tile * (block.half == 0 ? gate_stride_ : acc_stride_);
  }
  char* gate_at(const Block& block, int64_t tile) const {
    return block.half == 0 ? nullptr : acc_ + tile * gate_stride_;
  }
  bool finishes(const Block& block) const { return block.last && block.half == b.halves() - 1; }
  int64_t source_panels(const Block& block) const {
    return b.reads_in_place(block.k, rows.count()) ? block.full_panels : 0;
  }

  BlockCut cut_;
  char *a_memory_ = nullptr, *acc_ = nullptr;
  int64_t acc_stride_ = 0;   ///< from the sums of a row tile to the next; 0 where none are kept
  int64_t gate_stride_ = 0;  ///< the same for a first half
  int64_t gate_bytes_ = 0;   ///< what its sums take, where a second half follows
};

bool BlockedUnit::run() {
  const int64_t block_bytes = cut_.block_panels * b.panel_bytes(cut_.k_block);
  const int64_t acc_bytes = cut_.block_panels * acc_tile_bytes(kernel);
  acc_stride_ = cut_.k_blocks > 1 ? acc_bytes : 0;
  gate_stride_ = b.halves() > 1 ? acc_bytes : acc_stride_;
  gate_bytes_ = b.halves() > 1 ? acc_bytes * rows.count() : 0;
  const int64_t sizes[] = {
      cut_.keeps_a ? cut_.k_blocks * rows.rows() * a_row_bytes(kernel) : a_tile_bytes(kernel),
      b.is_packed() ? 0 : block_bytes * (cut_.packs_beside ? 2 : 1),
      gate_bytes_ + acc_bytes * (cut_.k_blocks > 1 ? rows.count() : 1),
      out.bias_bytes(),
      a.gather_bytes(kernel.mr, cut_.k_block),
      sums.scratch_bytes(cut_.k_block, cut_.block_panels)};
  char* parts[std::size(sizes)];
  if (!take_scratch(sizes, parts)) return false;
  a_memory_ = parts[0], acc_ = parts[2];
  out.widen_bias(parts[3]);
  if (sizes[4] > 0) a.gather_in(parts[4]);
  sums.use(parts[5], cut_.block_panels);

  char* packed = parts[1];
  char* other = packed + (cut_.packs_beside ? block_bytes : 0);
  Beside beside;
  for (int64_t index = 0; index < cut_.n_blocks * cut_.k_blocks; ++index) {
    const Block block = cut_.block_at(index), next = cut_.block_at(index + 1);
    sums.prepare({block.k0, block.k}, block.panel, block.panels);
    if (takes_panels_in_turn(block)) {
      multiply_by_panels(block, next, packed);
      continue;
    }
    finish_copy(beside.columns, kernel.source_flip);
    if (beside.rows.granules_left > 0) kernel.pack_rows(beside.rows, kAllBatches);
    if (!b.is_packed()) pack_block(block, std::max(source_panels(block), beside.panels), packed);
    beside = cut_.packs_beside ? beside_of(next, other) : Beside{};
    multiply_block(block, next, packed, &beside);
    std::swap(packed, other);
  }
  return true;
}

/// B: [k, cols] -> panels, but for those that are packed already or that the first row tile reads
/// as they lie and packs.
void BlockedUnit::pack_block(const Block& block, int64_t begin, char* packed) const {
  if (begin == 0 && b.packs_lines()) {
    RowWalk walk = rows_of(block, packed);
    kernel.pack_rows(walk, kAllBatches);
    begin = line_panels(block);
  }
  for (int64_t i = begin; i < block.panels; ++i) {
    b.pack(block.k0, block.k, block.panel + i, packed + i * b.panel_bytes(block.k),
           i + 1 < block.panels ? kernel.nr * b.column_bytes() : 0);
  }
}

/// Panels of a block that are packed from rows: those of whole lines, where k is whole steps.
int64_t BlockedUnit::line_panels(const Block& block) const {
  const int64_t panels_of_line = std::max<int64_t>(kLineBytes / b.panel_row_bytes(), 1);
  return block.k % kernel.k_step != 0 ? 0 : block.full_panels / panels_of_line * panels_of_line;
}

/// Those panels, in the order of addresses, as memory is fastest: spread over the products of the
/// block before, which is as large or larger.
RowWalk BlockedUnit::rows_of(const Block& block, char* packed) const {
  RowWalk walk;
  walk.row_bytes = line_panels(block) * b.panel_row_bytes();
  if (walk.row_bytes == 0) return walk;
  walk.rows = b.at(block.k0, block.panel);
  walk.k_bytes = b.k_bytes();
  walk.granules_left = block.k / kernel.granule_k;
  walk.to = packed;
  walk.panel_bytes = b.panel_bytes(block.k);
  walk.ahead = {walk.rows, walk.row_bytes, walk.k_bytes, block.k};
  walk.wait = kRowAheadLines / kernel.granule_k;
  const int64_t batches = walk.granules_left * walk.row_bytes / kLineBytes + walk.wait;
  const int64_t steps = rows.count() * block.panels * prefetch_steps(block.k);
  walk.per_step = ceil_div(batches * kBatchUnit, steps);
  return walk;
}

/// The whole panels of a block whose columns are whole lines, spread in the same way.
CopyWalk BlockedUnit::columns_of(const Block& block, char* packed) const {
  CopyWalk walk;
  const int64_t column_bytes = block.k * b.element_bytes();
  if (block.full_panels == 0 || column_bytes % kLineBytes != 0) return walk;
  walk.columns = kernel.nr;
  walk.rows = column_bytes / kLineBytes;
  walk.column_bytes = b.column_bytes();
  walk.row_bytes = b_granule_bytes(kernel);
  const int64_t batches_of_row = walk.columns / kBatchColumns;
  walk.next.batch = b.at(block.k0, block.panel);
  walk.next.batches_left = block.full_panels * walk.rows * batches_of_row;
  walk.ahead = walk.next;
  walk.to = packed;
  walk.wait = kCopyAheadRows * batches_of_row;
  const int64_t steps = rows.count() * block.panels * kCopySteps * prefetch_steps(block.k);
  walk.per_step = ceil_div((walk.next.batches_left + walk.wait) * kBatchUnit, steps);
  return walk;
}

BlockedUnit::Beside BlockedUnit::beside_of(const Block& block, char* packed) const {
  Beside beside;
  if (b.packs_lines()) {
    beside.rows = rows_of(block, packed);
    beside.panels = line_panels(block);
  } else {
    beside.columns = columns_of(block, packed);
    beside.panels = beside.columns.columns > 0 ? block.full_panels : 0;
  }
  return beside;
}

/// Every row tile against all panels. The next block of B is packed beside the products, or it
/// comes from memory during the last row tiles, before it can be evicted.
void BlockedUnit::multiply_block(const Block& block, const Block& next, char* packed,
                                 Beside* beside) {
  const int64_t steps = prefetch_steps(block.k);
  const int64_t b_steps = std::max<int64_t>(block.panels - kRowPrefetchPanels, 1) * steps;
  PrefetchWalk next_b, none;
  if (beside->panels == 0) next_b = b.walk(next.k0, next.k, next.panel, next.panels);
  const int64_t b_tiles =
      std::min(ceil_div(lines_of(next_b), kBlockPrefetchLines * b_steps) + 1, rows.count());
  next_b.lines = std::max(kBlockPrefetchLines, ceil_div(lines_of(next_b), b_tiles * b_steps));
  const int64_t in_place = source_panels(block);
  for (int64_t tile = 0; tile < rows.count(); ++tile) {
    if (packs_a(block)) pack_a(block, tile);
    PrefetchWalk next_rows;
    if (tile + 1 < rows.count()) {
      next_rows = packs_a(block)
                      ? a.walk(rows.begin(tile + 1), rows.rows_of(tile + 1), block.k0, block.k)
                      : packed_rows_behind(block, tile);
      next_rows.lines = ceil_div(lines_of(next_rows), kRowPrefetchPanels * steps);
    }
    PrefetchWalk* const walk = tile + b_tiles >= rows.count() ? &next_b : &none;
    TileArgs args = packed_args(block, tile, packed);
    args.copy = &beside->columns;
    args.rows_beside = &beside->rows;
    args.b_from = beside->panels > 0 ? BFrom::kPanelsBeside : BFrom::kPanels;
    int64_t begin = 0;
    if (tile == 0 && in_place > 0) {
      TileArgs from_source = args;
      b.point_at(block.k0, block.panel, rows.count() > 1 ? packed : nullptr, &from_source);
      from_source.b_packed_panel_bytes = b.panel_bytes(block.k);
      from_source.b_ahead_bytes = std::max<int64_t>(from_source.b_panel_bytes, 64);
      multiply_panels(from_source, block, tile, 0, in_place, &next_rows, walk);
      begin = in_place;
    }
    multiply_panels(args, block, tile, begin, block.panels, &next_rows, walk);
    finish_tile(block, tile);
  }
}

/// Panels [begin, end) of a block for one row tile; `args` is set up from the block's first panel
/// on. The first panels advance one walk, the others the other.
void BlockedUnit::multiply_panels(TileArgs args, const Block& block, int64_t tile, int64_t begin,
                                  int64_t end, PrefetchWalk* first_walk, PrefetchWalk* walk) const {
  const auto multiply = [&](int64_t from, int64_t to, PrefetchWalk* prefetch) {
    if (from >= to) return;
    TileArgs some = args;
    some.b = static_cast<const char*>(args.b) + from * args.b_panel_bytes;
    if (args.b_packed != nullptr) {
      some.b_packed = static_cast<char*>(args.b_packed) + from * args.b_packed_panel_bytes;
    }
    some.acc = static_cast<char*>(args.acc) + from * args.acc_panel_bytes;
    some.panels = to - from;
    some.prefetch = prefetch;
    if (block.last) out.point_at(rows.begin(tile), block.panel + from, &some);
    sums.multiply(some, {block.k0, block.k}, rows.begin(tile), block.panel + from);
  };
  // A cut-off last panel can't be stored as it is.
  const bool stores = out.is_plain() && block.last;
  const int64_t whole = stores ? std::clamp(block.full_panels, begin, end) : end;
  const int64_t split = std::clamp(kRowPrefetchPanels, begin, whole);
  multiply(begin, split, first_walk);
  multiply(split, whole, walk);
  multiply(whole, end, walk);
}

/// One row tile against packed panels of a block.
TileArgs BlockedUnit::packed_args(const Block& block, int64_t tile, const char* packed) const {
  const char* const packed_rows = a_at(block, tile);
  return {.a = packed_rows,
          .b = b.is_packed() ? b.packed_at(block.k0, block.panel) : packed,
          .b_panel_bytes = b.panel_bytes(block.k),
          .b_granule_bytes = b_granule_bytes(kernel),
          .acc = acc_at(block, tile),
          .acc_panel_bytes = acc_tile_bytes(kernel),
          .granules = granules(block.k),
          .rows = rows.rows_of(tile),
          .first = block.k_index == 0,
          .a_surplus = surplus_of(packed_rows)};
}

/// The epilogue, after the last block of k, of the panels that weren't stored as they are.
void BlockedUnit::finish_tile(const Block& block, int64_t tile) const {
  const int64_t stored = out.is_plain() ? block.full_panels : 0;
  if (!finishes(block) || stored == block.panels) return;
  out.finish({.row = rows.begin(tile),
              .rows = rows.rows_of(tile),
              .panel = block.panel % b.panels() + stored,
              .panels = block.panels - stored,
              .acc = acc_at(block, tile) + stored * acc_tile_bytes(kernel),
              .gate_acc = gate_at(block, tile),
              .acc_panel_bytes = acc_tile_bytes(kernel)});
}

/// The packed rows behind those of `tile`.
PrefetchWalk BlockedUnit::packed_rows_behind(const Block& block, int64_t tile) const {
  const int64_t next_rows = rows.rows_of(tile + 1);
  const char* const next = a_at(block, tile) + rows.rows_of(tile) * a_row_bytes(kernel);
  const int64_t used_bytes = granules(block.k) * kernel.granule_bytes;
  if (kernel.interleaves_a) return {next, used_bytes * next_rows, 0, 1};
  return {next, used_bytes, a_row_bytes(kernel), next_rows};
}

/// Whether all row tiles use a panel right after it was packed: where the products of one row tile
/// last longer than packing, and while all of a packed A, which they read once for each panel, is a
/// small part of L2.
bool BlockedUnit::takes_panels_in_turn(const Block& block) const {
  return !b.is_packed() && !cut_.packs_beside && cut_.keeps_a &&
         kernel.tuning.pack_cost < kernel.mr && source_panels(block) < block.full_panels &&
         rows.rows() * granules(block.k) * kernel.granule_bytes <= blocking.a_bytes_max / 2;
}

/// Then memory has all their products to bring the next panel's source, not those of one row tile,
/// and no more than two panels' sources are in L2, where columns that lie a power of two apart
/// share few sets. A is kept: the first block of columns packs it.
void BlockedUnit::multiply_by_panels(const Block& block, const Block& next, char* packed) {
  for (int64_t tile = 0; tile < rows.count() && packs_a(block); ++tile) pack_a(block, tile);
  for (int64_t i = 0; i < block.panels; ++i) {
    b.pack(block.k0, block.k, block.panel + i, packed, 0);
    PrefetchWalk walk = i + 1 < block.panels ? b.walk(block.k0, block.k, block.panel + i + 1, 1)
                                             : b.walk(next.k0, next.k, next.panel,
                                                      std::min<int64_t>(next.panels, 1));
    walk.lines = ceil_div(lines_of(walk), rows.count() * prefetch_steps(block.k));
    multiply_panel(block, i, packed, &walk);
    prefetch_all(&walk);
  }
}

/// All row tiles with one packed panel. Each is a call of some thousand cycles, so what they have
/// in common is set up once.
void BlockedUnit::multiply_panel(const Block& block, int64_t index, const char* packed,
                                 PrefetchWalk* walk) {
  TileArgs args = packed_args(block, 0, packed);
  args.panels = 1;
  // The next sums are those of the next row tile.
  args.acc_panel_bytes = acc_at(block, 1) - acc_at(block, 0);
  args.prefetch = walk;
  const bool stored = block.last && out.point_at(0, block.panel + index, &args);
  char* const first_out = static_cast<char*>(args.out);
  for (int64_t tile = 0; tile < rows.count(); ++tile) {
    args.rows = rows.rows_of(tile);
    args.a = a_at(block, tile);
    args.a_surplus = surplus_of(a_at(block, tile));
    args.acc = acc_at(block, tile) + index * acc_tile_bytes(kernel);
    if (stored) args.out = first_out + rows.begin(tile) * args.out_row_bytes;
    sums.multiply(args, {block.k0, block.k}, rows.begin(tile), block.panel + index);
    if (!finishes(block) || stored) continue;
    const char* const gate = gate_at(block, tile);
    out.finish({.row = rows.begin(tile),
                .rows = args.rows,
                .panel = block.panel % b.panels() + index,
                .panels = 1,
                .acc = static_cast<const char*>(args.acc),
                .gate_acc = gate ? gate + index * acc_tile_bytes(kernel) : nullptr,
                .acc_panel_bytes = acc_tile_bytes(kernel)});
  }
}

}  // namespace

bool multiply_blocked(const WorkUnit& unit, const GemmPlan& plan) {
  return BlockedUnit(unit, plan).run();
}

}  // namespace cadre::cpu
