// Many rows: a block of B is packed into L2 and used for all rows, which pass once for each block.
#include "cpu/unit_run.h"

namespace cadre::cpu {
namespace {

/// The next rows of A are asked for during this many panels.
constexpr int64_t kRowPrefetchPanels = 2;
/// Lines of the next block of B in a prefetch step: few enough to leave the products alone.
constexpr int64_t kBlockPrefetchLines = 4;

}  // namespace

/// Packed weights bring their own cut; otherwise blocks of equal size.
UnitRun::KBlocks UnitRun::k_blocks() const {
  if (unit_.packed) return {unit_.packed->layout.blocks(), unit_.packed->layout.k_block};
  const int64_t count = std::max<int64_t>(ceil_div(item_.k, blocking_.k_block), 1);
  const int64_t step = std::max<int64_t>(int64_t{16} * kernel_.granule_k, kernel_.k_step);
  return {count, round_up(std::max<int64_t>(ceil_div(item_.k, count), 1), step)};
}

/// Panels [panel, panel + panels) of one row tile, for which `args` is set up from panel 0 on. The
/// first panels advance one walk, the others the other.
void UnitRun::multiply_tile(TileArgs args, int64_t tile, int64_t panel, int64_t panels, bool last,
                            PrefetchWalk* first_walk, PrefetchWalk* walk) const {
  const auto part_of = [&](int64_t begin, int64_t end, PrefetchWalk* prefetch) {
    if (begin >= end) return;
    TileArgs some = args;
    some.b = static_cast<const char*>(args.b) + begin * args.b_panel_bytes;
    if (args.b_packed != nullptr) {
      some.b_packed = static_cast<char*>(args.b_packed) + begin * args.b_packed_panel_bytes;
    }
    some.acc = static_cast<char*>(args.acc) + begin * args.acc_panel_bytes;
    some.panels = end - begin;
    some.prefetch = prefetch;
    if (last) point_at_out(tile, begin, &some);
    kernel_.multiply(some);
  };
  const int64_t end = panel + panels;
  // A cut-off last panel can't be stored as it is.
  const int64_t whole = plain_out_ && last ? std::clamp(full_panels_, panel, end) : end;
  const int64_t split = std::clamp(kRowPrefetchPanels, panel, whole);
  part_of(panel, split, first_walk);
  part_of(split, whole, walk);
  part_of(whole, end, walk);
}

bool UnitRun::blocked() {
  const KBlocks blocks = k_blocks();
  const int64_t acc_tiles = blocks.count > 1 ? tiles_ : 1;
  const int64_t acc_bytes = panels_ * acc_tile_bytes();
  const int64_t b_bytes = unit_.packed ? 0 : panels_ * b_panel_bytes(blocks.k);
  const int64_t sizes[] = {a_tile_bytes(), b_bytes, acc_tiles * acc_bytes, bias_bytes()};
  int64_t total = 0;
  for (const int64_t size : sizes) total += Arena::padded(size);
  auto* memory = static_cast<char*>(Scratch::of_this_thread().reserve(static_cast<size_t>(total)));
  if (!memory) return false;
  Arena arena(memory);
  char* const a_packed = arena.take(sizes[0]);
  char* const b_scratch = arena.take(sizes[1]);
  char* const acc = arena.take(sizes[2]);
  bias_ = widen_bias(arena.take(sizes[3]));

  for (int64_t block = 0; block < blocks.count; ++block) {
    const int64_t k0 = std::min(block * blocks.k, item_.k);
    const int64_t k = std::min(blocks.k, item_.k - k0);
    const bool last = block == blocks.count - 1;
    // B: [k, cols] -> panels. The first row tile packs what it can read as it lies.
    const int64_t panel_bytes = b_panel_bytes(k);
    const int64_t source_panels = reads_source(k) ? full_panels_ : 0;
    for (int64_t panel = source_panels; panel < panels_ && !unit_.packed; ++panel) {
      kernel_.pack_b(part(b_, k0, panel * kernel_.nr), k, panel_cols(panel),
                     b_scratch + panel * panel_bytes);
    }
    const char* const b_packed = unit_.packed ? packed_at(k0, 0) : b_scratch;
    // The next block of B comes from memory during the last row tiles, before it can be evicted.
    const int64_t steps = prefetch_steps(k);
    const int64_t next_k = last ? 0 : std::min(blocks.k, item_.k - k0 - k);
    PrefetchWalk next_b = walk_over(k0 + k, next_k, 0, panels_);
    const int64_t b_steps = std::max<int64_t>(panels_ - kRowPrefetchPanels, 1) * steps;
    const int64_t b_tiles =
        std::min(ceil_div(lines_of(next_b), kBlockPrefetchLines * b_steps) + 1, tiles_);
    next_b.lines = std::max(kBlockPrefetchLines, ceil_div(lines_of(next_b), b_tiles * b_steps));
    PrefetchWalk nothing;
    // A: every row tile against all panels.
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      kernel_.pack_a(part(a_, tile_begin(tile), k0), tile_rows(tile), k, a_packed);
      PrefetchWalk next_rows = tile + 1 < tiles_ ? walk_over_rows(tile + 1, k0, k) : PrefetchWalk{};
      next_rows.lines = ceil_div(lines_of(next_rows), kRowPrefetchPanels * steps);
      PrefetchWalk* const walk = tile + b_tiles >= tiles_ ? &next_b : &nothing;
      char* const tile_acc = acc + (acc_tiles > 1 ? tile : 0) * acc_bytes;
      TileArgs args{.a = a_packed,
                    .b = b_packed,
                    .b_panel_bytes = panel_bytes,
                    .b_granule_bytes = b_granule_bytes(),
                    .acc = tile_acc,
                    .acc_panel_bytes = acc_tile_bytes(),
                    .granules = granules_of(k),
                    .rows = tile_rows(tile),
                    .first = block == 0,
                    .a_surplus = a_packed + kSurplusGranule * kernel_.granule_bytes};
      int64_t panel = 0;
      if (tile == 0 && source_panels > 0) {
        TileArgs from_source = args;
        from_source.b_from = tiles_ > 1 ? BFrom::kSourceKept : BFrom::kSource;
        from_source.b_packed = b_scratch;
        from_source.b_packed_panel_bytes = panel_bytes;
        point_at_source(k0, 0, &from_source);
        from_source.b_ahead_bytes = std::max<int64_t>(from_source.b_panel_bytes, 64);
        multiply_tile(from_source, tile, 0, source_panels, last, &next_rows, walk);
        panel = source_panels;
      }
      multiply_tile(args, tile, panel, panels_ - panel, last, &next_rows, walk);
      if (!last) continue;
      const int64_t stored = plain_out_ ? full_panels_ : 0;
      if (stored < panels_) {
        finish(tile, stored, panels_ - stored, tile_acc + stored * acc_tile_bytes(),
               acc_tile_bytes());
      }
    }
  }
  return true;
}

}  // namespace cadre::cpu
