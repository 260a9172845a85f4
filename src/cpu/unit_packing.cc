// Many rows, B packed in whole lines of its rows or panel by panel.
#include "cpu/unit_run.h"

namespace cadre::cpu {
namespace {

/// Lines of rows that are on their way while B is packed from them.
constexpr int64_t kRowAheadLines = 64;

}  // namespace

/// Panels of a block that are packed from rows: those of whole lines, where k is whole steps.
int64_t UnitRun::walked_panels(const Block& block) const {
  if (block.k % kernel_.k_step != 0) return 0;
  return block.full_panels / line_panels() * line_panels();
}

/// Those panels, in the order of addresses, as memory is fastest: spread over the products of the
/// block before, which is as large or larger.
RowWalk UnitRun::rows_of(const Block& block, char* b_memory) const {
  const auto size = static_cast<int64_t>(size_of(b_.dtype));
  RowWalk walk;
  walk.row_bytes = walked_panels(block) * kernel_.nr * size;
  if (walk.row_bytes == 0) return walk;
  walk.rows = static_cast<const char*>(element_at(b_, block.k0, block.panel * kernel_.nr));
  walk.k_bytes = b_.row_stride * size;
  walk.granules_left = block.k / kernel_.granule_k;
  walk.to = b_memory;
  walk.panel_bytes = b_panel_bytes(block.k);
  walk.ahead = {walk.rows, walk.row_bytes, walk.k_bytes, block.k};
  walk.wait = kRowAheadLines / kernel_.granule_k;
  const int64_t strips = walk.granules_left * walk.row_bytes / kStripBytes + walk.wait;
  const int64_t steps = tiles_ * block.panels * prefetch_steps(block.k);
  walk.per_step = ceil_div(strips * kStripUnit, steps);
  return walk;
}

/// All row tiles with one packed panel. Each is a call of some thousand cycles, so what they have
/// in common is set up once.
void UnitRun::multiply_panel(const Block& block, int64_t panel, const char* a, const char* b,
                             char* acc, int64_t acc_tile_stride, PrefetchWalk* walk) const {
  TileArgs args = packed_args(block, 0, a, b, acc);
  args.panels = 1;
  args.acc_panel_bytes = acc_tile_stride;  // the next sums are those of the next row tile
  args.prefetch = walk;
  const bool stored = block.last && point_at_out(0, panel, &args);
  char* const out = static_cast<char*>(args.out);
  for (int64_t tile = 0; tile < tiles_; ++tile) {
    args.rows = tile_rows(tile);
    args.a = a + kept_a_offset(block, tile);
    args.a_surplus = a_surplus(args.a);
    args.acc = acc + tile * acc_tile_stride;
    if (stored) args.out = out + tile_begin(tile) * args.out_row_bytes;
    kernel_.multiply(args);
    if (block.last && !stored) {
      finish(tile_begin(tile), args.rows, panel, 1, static_cast<const char*>(args.acc),
             acc_tile_bytes());
    }
  }
}

/// Whether all row tiles use a panel right after it was packed: while all of a packed A, which they
/// read once for each panel, is a small part of L2.
bool UnitRun::takes_panels(const Block& block) const {
  return rows_ * granules_of(block.k) * kernel_.granule_bytes <= blocking_.a_bytes_max / 2;
}

/// Then memory has all their products to bring the next panel's source, not those of one row tile,
/// and no more than two panels' sources are in L2, where columns that lie a power of two apart
/// share few sets. A is kept: the first block of columns packs it.
void UnitRun::multiply_by_panels(const Block& block, const Block& next, char* a, char* b, char* acc,
                                 int64_t acc_tile_stride) const {
  for (int64_t tile = 0; tile < tiles_ && block.panel == 0; ++tile) {
    kernel_.pack_a(part(a_, tile_begin(tile), block.k0), tile_rows(tile), block.k,
                   a + kept_a_offset(block, tile));
  }
  for (int64_t i = 0; i < block.panels; ++i) {
    const int64_t panel = block.panel + i;
    kernel_.pack_b(part(b_, block.k0, panel * kernel_.nr), block.k, panel_cols(panel), b, 0);
    PrefetchWalk walk = i + 1 < block.panels ? walk_over(block.k0, block.k, panel + 1, 1)
                                             : walk_over(next.k0, next.k, next.panel,
                                                         std::min<int64_t>(next.panels, 1));
    walk.lines = ceil_div(lines_of(walk), tiles_ * prefetch_steps(block.k));
    multiply_panel(block, panel, a, b, acc + i * acc_tile_bytes(), acc_tile_stride, &walk);
    prefetch_all(&walk);
  }
}

}  // namespace cadre::cpu
