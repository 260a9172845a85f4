// Many rows: a block of B is packed into L2 and used for all rows, which pass once for each block.
#include <limits>

#include "cpu/kernels/copy_walk.h"
#include "cpu/unit_run.h"

namespace cadre::cpu {
namespace {

/// The next rows of A are asked for during this many panels.
constexpr int64_t kRowPrefetchPanels = 2;
/// Lines of the next block of B in a prefetch step: few enough to leave the products alone.
constexpr int64_t kBlockPrefetchLines = 4;
/// Row tiles up to which packing B matters more than passing sums through memory.
constexpr int64_t kFewTiles = 8;
/// Lines of each column that are on their way while the next block of B is packed.
constexpr int64_t kCopyAheadRows = 4;
/// The inner loop packs so many times as often as it prefetches.
constexpr int64_t kCopySteps = 4;
/// Row tiles up to which that gains: for more of them packing is a small part, and the second
/// buffer takes room in L2 from their accumulators.
constexpr int64_t kBesideTiles = 48;
/// Row tiles up to which blocks of B are half as large where they are packed from rows.
constexpr int64_t kHalfBlockTiles = 4;
/// All that is left of a walk.
constexpr int64_t kAllStrips = std::numeric_limits<int64_t>::max();

}  // namespace

/// Packed weights bring their own cut of k; otherwise blocks of equal size. As many panels side by
/// side as fit into the cache with that.
UnitRun::Blocks UnitRun::cut_into_blocks() const {
  Blocks blocks{};
  const bool fits = fits_packed_a();
  if (unit_.packed) {
    blocks.k_count = unit_.packed->layout.blocks();
    blocks.k = unit_.packed->layout.k_block;
  } else {
    const int64_t step = std::max<int64_t>(int64_t{16} * kernel_.granule_k, kernel_.k_step);
    int64_t most_k = fits ? blocking_.kept_k_block : blocking_.k_block;
    // Rows of B as it lies share few sets of L2 and, where a granule takes several of them, fill
    // these with a panel of a whole block. Blocks with as many rows as a whole one has granules
    // cost little, but for many rows of A more than they save. (Not measured with AMX.)
    const bool fills_sets = reads_source() && kernel_.granule_k > 1 && kernel_.streams_in_order;
    if (fits && fills_sets && tiles_ <= kFewTiles) most_k /= kernel_.granule_k;
    blocks.k_count = std::max<int64_t>(ceil_div(item_.k, most_k), 1);
    blocks.k = round_up(std::max<int64_t>(ceil_div(item_.k, blocks.k_count), 1), step);
  }
  // Where B is packed from columns that lie apart, its source needs room beside it.
  int64_t b_bytes = fits             ? blocking_.kept_b_bytes_max
                    : reads_source() ? blocking_.b_bytes_max
                                     : blocking_.b_bytes_max * 2 / 3;
  // There are two buffers where rows are packed beside the products, and the first block has no
  // products before it, which costs few row tiles most.
  if (packs_rows() && (!fits || tiles_ <= kHalfBlockTiles)) b_bytes /= 2;
  const int64_t k = std::min(blocks.k, std::max<int64_t>(item_.k, 1));
  const int64_t most = std::max<int64_t>(b_bytes / (granules_of(k) * b_granule_bytes()), 1);
  blocks.panels = ceil_div(panels_, ceil_div(panels_, most));
  if (packs_rows()) blocks.panels = round_up(blocks.panels, line_panels());
  blocks.n_count = ceil_div(panels_, blocks.panels);
  blocks.keeps_a = fits && blocks.n_count > 1;
  return blocks;
}

UnitRun::Block UnitRun::block_at(const Blocks& blocks, int64_t index) const {
  if (index >= blocks.n_count * blocks.k_count) return {};
  Block block{};
  block.k_index = index % blocks.k_count;
  block.panel = std::min(index / blocks.k_count * blocks.panels, panels_);
  block.panels = std::min(blocks.panels, panels_ - block.panel);
  block.full_panels = std::clamp<int64_t>(full_panels_ - block.panel, 0, block.panels);
  block.k0 = std::min(block.k_index * blocks.k, item_.k);
  block.k = std::min(blocks.k, item_.k - block.k0);
  block.last = block.k_index == blocks.k_count - 1;
  return block;
}

/// Panels [begin, end) of a block for one row tile; `args` is set up from the block's first panel
/// on. The first panels advance one walk, the others the other.
void UnitRun::multiply_tile(const TileArgs& args, const Block& block, int64_t tile, int64_t begin,
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
    if (block.last) point_at_out(tile_begin(tile), block.panel + from, &some);
    kernel_.multiply(some);
  };
  // A cut-off last panel can't be stored as it is.
  const int64_t whole = plain_out_ && block.last ? std::clamp(block.full_panels, begin, end) : end;
  const int64_t split = std::clamp(kRowPrefetchPanels, begin, whole);
  multiply(begin, split, first_walk);
  multiply(split, whole, walk);
  multiply(whole, end, walk);
}

/// All of A, packed, stays in this thread's share of L3.
bool UnitRun::fits_packed_a() const {
  return rows_ * granules_of(item_.k) * kernel_.granule_bytes <=
         blocking_.a_kept_bytes_max / threads_;
}

bool UnitRun::blocked(SharedBlock* shared) {
  const Blocks blocks = cut_into_blocks();
  const bool keeps_a = blocks.keeps_a;
  const bool shares = shared != nullptr && can_share();
  const bool rows_beside = packs_rows() && tiles_ > 1;
  const bool beside = rows_beside || packs_beside();
  const int64_t block_bytes = blocks.panels * b_panel_bytes(blocks.k);
  const int64_t acc_tiles = blocks.k_count > 1 ? tiles_ : 1;
  const int64_t acc_bytes = blocks.panels * acc_tile_bytes();
  const int64_t a_bytes = blocks.k_count * rows_ * kPackedRowStride * kernel_.granule_bytes;
  const int64_t sizes[] = {keeps_a ? a_bytes : a_tile_bytes(),
                           unit_.packed ? 0 : block_bytes * (beside ? 2 : 1), acc_tiles * acc_bytes,
                           bias_bytes(),
                           shares && !unit_.packed ? blocks.k_count * block_bytes : 0};
  char* pieces[std::size(sizes)];
  if (!take_scratch(sizes, pieces)) return false;
  const auto [a_memory, b_buffers, acc, bias_memory, shared_b] = pieces;
  bias_ = widen_bias(bias_memory);

  CopyWalk copy;
  RowWalk rows;
  int64_t copied = 0;  // panels that are packed beside the block before
  for (int64_t index = 0; index < blocks.n_count * blocks.k_count; ++index) {
    const Block block = block_at(blocks, index);
    char* const b_memory = b_buffers + (beside && index % 2 != 0 ? block_bytes : 0);
    const int64_t panel_bytes = b_panel_bytes(block.k);
    const int64_t source_panels = reads_unpacked(block.k) ? block.full_panels : 0;
    finish_copy(copy, kernel_.source_flip);
    if (rows.granules_left > 0) kernel_.pack_rows(rows, kAllStrips);
    const bool by_panels = copied == 0 && packs_by_panels(block, source_panels);
    if (!unit_.packed && !by_panels) {
      pack_block(block, std::max(source_panels, copied), b_memory);
    }
    const int64_t steps = prefetch_steps(block.k);
    // The next block of B is packed beside the products, or it comes from memory during the last
    // row tiles, before it can be evicted; of one that is packed panel by panel the first panel,
    // the others follow as they are needed.
    const Block next = block_at(blocks, index + 1);
    if (by_panels && keeps_a && !beside && !shares && takes_panels(block)) {
      multiply_by_panels(block, next, a_memory, b_memory, acc, acc_tiles > 1 ? acc_bytes : 0);
      continue;
    }
    char* const next_memory = b_buffers + (index % 2 == 0 ? block_bytes : 0);
    copy = beside && !rows_beside ? copy_of(next, next_memory) : CopyWalk{};
    rows = rows_beside ? rows_of(next, next_memory) : RowWalk{};
    copied = rows_beside ? walked_panels(next) : copy.columns > 0 ? next.full_panels : 0;
    PrefetchWalk next_b;
    if (copied == 0) {
      next_b = walk_over(next.k0, next.k, next.panel,
                         by_panels ? std::min<int64_t>(next.panels, 1) : next.panels);
    }
    const int64_t other_panels = std::max<int64_t>(block.panels - kRowPrefetchPanels, 1);
    const int64_t b_steps = other_panels * steps;
    const int64_t b_tiles =
        std::min(ceil_div(lines_of(next_b), kBlockPrefetchLines * b_steps) + 1, tiles_);
    next_b.lines = std::max(kBlockPrefetchLines, ceil_div(lines_of(next_b), b_tiles * b_steps));
    // A: every row tile against all panels.
    const bool packs_a = !keeps_a || block.panel == 0;
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      if (shares && !packs_a && tile > 0 && shared->is_wanted()) {
        share_block(blocks,
                    {.column_block = index / blocks.k_count,
                     .first_k_block = block.k_index,
                     .tiles_ahead = tile,
                     .tiles = tiles_,
                     .a = a_memory,
                     .first_b = b_memory,
                     .b = shared_b,
                     .acc = acc,
                     .bias = bias_},
                    shared_b, shared);
        index += blocks.k_count - 1 - block.k_index;
        copy = {};
        rows = {};
        copied = 0;
        break;
      }
      char* const a = a_memory + (keeps_a ? kept_a_offset(block, tile) : 0);
      if (packs_a) {
        kernel_.pack_a(part(a_, tile_begin(tile), block.k0), tile_rows(tile), block.k, a);
      }
      PrefetchWalk next_rows, next_kept;
      if (tile + 1 < tiles_) {
        const PrefetchWalk packed_rows = walk_over_packed_rows(a, tile, block.k);
        next_rows = packs_a ? walk_over_rows(tile + 1, block.k0, block.k) : packed_rows;
        next_rows.lines = ceil_div(lines_of(next_rows), kRowPrefetchPanels * steps);
        // Where they will be packed to: stores to lines in no cache would wait for memory.
        if (keeps_a && packs_a) next_kept = packed_rows;
        next_kept.lines = ceil_div(lines_of(next_kept), other_panels * steps);
      }
      PrefetchWalk* const walk = tile + b_tiles >= tiles_ ? &next_b : &next_kept;
      char* const tile_acc = acc + (acc_tiles > 1 ? tile : 0) * acc_bytes;
      TileArgs args = packed_args(block, tile, a, b_memory, tile_acc);
      args.copy = &copy;
      args.rows_beside = &rows;
      args.b_from = copied > 0 ? BFrom::kPanelsBeside : BFrom::kPanels;
      int64_t begin = 0;
      if (tile == 0 && source_panels > 0) {
        TileArgs from_source = args;
        point_at_source(block.k0, block.panel, tiles_ > 1 ? b_memory : nullptr, &from_source);
        from_source.b_packed_panel_bytes = panel_bytes;
        from_source.b_ahead_bytes = std::max<int64_t>(from_source.b_panel_bytes, 64);
        multiply_tile(from_source, block, tile, 0, source_panels, &next_rows, walk);
        begin = source_panels;
      }
      if (tile == 0 && by_panels) {
        pack_and_multiply(args, block, begin, tiles_ > 1 ? &next_rows : &next_b, b_memory);
      } else {
        multiply_tile(args, block, tile, begin, block.panels, &next_rows, walk);
      }
      finish_tile(block, tile, tile_acc);
    }
  }
  return true;
}

TileArgs UnitRun::packed_args(const Block& block, int64_t tile, const char* a, const char* b,
                              char* acc) const {
  return {.a = a,
          .b = unit_.packed ? packed_at(block.k0, block.panel) : b,
          .b_panel_bytes = b_panel_bytes(block.k),
          .b_granule_bytes = b_granule_bytes(),
          .acc = acc,
          .acc_panel_bytes = acc_tile_bytes(),
          .granules = granules_of(block.k),
          .rows = tile_rows(tile),
          .first = block.k_index == 0,
          .a_surplus = a_surplus(a)};
}

/// The epilogue, after the last block of k, of the panels that weren't stored as they are.
void UnitRun::finish_tile(const Block& block, int64_t tile, const char* acc) const {
  const int64_t stored = plain_out_ ? block.full_panels : 0;
  if (!block.last || stored == block.panels) return;
  finish(tile_begin(tile), tile_rows(tile), block.panel + stored, block.panels - stored,
         acc + stored * acc_tile_bytes(), acc_tile_bytes());
}

/// The packed rows behind those of `tile`.
PrefetchWalk UnitRun::walk_over_packed_rows(const char* tile_a, int64_t tile, int64_t k) const {
  const int64_t row_bytes = kPackedRowStride * kernel_.granule_bytes;
  const char* const next = tile_a + tile_rows(tile) * row_bytes;
  const int64_t used_bytes = granules_of(k) * kernel_.granule_bytes;
  if (kernel_.interleaves_a) return {next, used_bytes * tile_rows(tile + 1), 0, 1};
  return {next, used_bytes, row_bytes, tile_rows(tile + 1)};
}

/// Whether the first row tile packs each panel just before it is used: where its products with a
/// panel last longer than packing one, the next panel's source can come from memory meanwhile.
bool UnitRun::packs_by_panels(const Block& block, int64_t source_panels) const {
  return !unit_.packed && source_panels < block.full_panels && kernel_.pack_cost < kernel_.mr;
}

/// Then only one panel's source waits in L2, where columns that lie a power of two apart share few
/// sets. During the last panel `then` is fetched.
void UnitRun::pack_and_multiply(const TileArgs& args, const Block& block, int64_t begin,
                                PrefetchWalk* then, char* b_memory) const {
  const int64_t steps = prefetch_steps(block.k);
  for (int64_t i = begin; i < block.panels; ++i) {
    const int64_t panel = block.panel + i;
    kernel_.pack_b(part(b_, block.k0, panel * kernel_.nr), block.k, panel_cols(panel),
                   b_memory + i * b_panel_bytes(block.k), 0);
    PrefetchWalk next = i + 1 < block.panels ? walk_over(block.k0, block.k, panel + 1, 1) : *then;
    next.lines = ceil_div(lines_of(next), steps);
    multiply_tile(args, block, 0, i, i + 1, &next, &next);
    prefetch_all(&next);
  }
}

/// Whether the next block of B is packed beside the products of this one.
bool UnitRun::packs_beside() const {
  return kernel_.packs_beside && !unit_.packed && tiles_ > 1 && tiles_ <= kBesideTiles &&
         b_.row_stride == 1 && b_.col_stride != 1 && b_.dtype == kernel_.source_dtype;
}

/// The whole panels of a block whose columns are whole lines, spread over the products of the block
/// before, which is as large or larger.
CopyWalk UnitRun::copy_of(const Block& block, char* b_memory) const {
  const auto size = static_cast<int64_t>(size_of(b_.dtype));
  CopyWalk walk;
  if (block.full_panels == 0 || block.k * size % kStripBytes != 0) return walk;
  walk.columns = kernel_.nr;
  walk.rows = block.k * size / kStripBytes;
  walk.column_bytes = b_.col_stride * size;
  walk.row_bytes = b_granule_bytes();
  const int64_t strips_of_row = walk.columns / kStripColumns;
  walk.next.strip = static_cast<const char*>(element_at(b_, block.k0, block.panel * kernel_.nr));
  walk.next.strips_left = block.full_panels * walk.rows * strips_of_row;
  walk.ahead = walk.next;
  walk.to = b_memory;
  walk.wait = kCopyAheadRows * strips_of_row;
  const int64_t steps = tiles_ * block.panels * kCopySteps * prefetch_steps(block.k);
  walk.per_step = ceil_div((walk.next.strips_left + walk.wait) * kStripUnit, steps);
  return walk;
}

/// B: [k, cols] -> panels, but for those that the first row tile reads as they lie and packs.
void UnitRun::pack_block(const Block& block, int64_t begin, char* b_memory) const {
  const int64_t next_panel_bytes =
      kernel_.nr * b_.col_stride * static_cast<int64_t>(size_of(b_.dtype));
  if (begin == 0 && packs_rows()) {
    RowWalk walk = rows_of(block, b_memory);
    kernel_.pack_rows(walk, kAllStrips);
    begin = walked_panels(block);
  }
  for (int64_t i = begin; i < block.panels; ++i) {
    const int64_t panel = block.panel + i;
    kernel_.pack_b(part(b_, block.k0, panel * kernel_.nr), block.k, panel_cols(panel),
                   b_memory + i * b_panel_bytes(block.k),
                   i + 1 < block.panels ? next_panel_bytes : 0);
  }
}

}  // namespace cadre::cpu
