// Sizes of blocks of B, and their order.
#include "cpu/block_cut.h"

#include <algorithm>

namespace cadre::cpu {
namespace {

/// Row tiles up to which packing B matters more than passing sums through memory.
constexpr int64_t kFewTiles = 8;
/// Row tiles up to which blocks of B are half as large where they are packed from rows.
constexpr int64_t kHalfBlockTiles = 4;

}  // namespace

/// Packed weights bring their own cut of k; otherwise blocks of equal size. As many panels side by
/// side as fit into the cache with that.
BlockCut::BlockCut(const Unit& unit) : unit_(unit) {
  const BSource& b = unit.b;
  const GemmKernel& kernel = unit.kernel;
  const Blocking& blocking = unit.blocking;
  const int64_t k = unit.k, tiles = unit.rows.count();
  // All of A, packed, stays in this thread's share of L3.
  const bool fits = unit.rows.rows() * granules_of(kernel, k) * kernel.granule_bytes <=
                    blocking.a_kept_bytes_max / unit.threads;
  if (b.is_packed()) {
    k_block = b.packed_k_block();
    k_blocks = std::max<int64_t>(ceil_div(k, k_block), 1);
  } else {
    // Powers of two; a block of scales isn't cut.
    const int64_t step = std::max<int64_t>(
        {int64_t{16} * kernel.granule_k, int64_t{kernel.k_step}, unit.sums.block_k()});
    int64_t most_k = fits ? blocking.kept_k_block : blocking.k_block;
    // Rows of B as it lies share few sets of L2 and, where a granule takes several of them, fill
    // these with a panel of a whole block. Blocks with as many rows as a whole one has granules
    // cost little, but for many rows of A more than they save. (Not measured with AMX.)
    const bool fills_sets =
        b.reads_rows() && kernel.granule_k > 1 && kernel.tuning.streams_in_order;
    if (fits && fills_sets && tiles <= kFewTiles) most_k /= kernel.granule_k;
    k_blocks = std::max<int64_t>(ceil_div(k, most_k), 1);
    k_block = round_up(std::max<int64_t>(ceil_div(k, k_blocks), 1), step);
  }
  // Where B is packed from columns that lie apart, its source needs room beside it.
  int64_t b_bytes = fits             ? blocking.kept_b_bytes_max
                    : b.reads_rows() ? blocking.b_bytes_max
                                     : blocking.b_bytes_max * 2 / 3;
  // There are two buffers where rows are packed beside the products, and the first block has no
  // products before it, which costs few row tiles most.
  if (b.packs_lines() && (!fits || tiles <= kHalfBlockTiles)) b_bytes /= 2;
  const int64_t k_used = std::min(k_block, std::max<int64_t>(k, 1));
  const int64_t most =
      std::max<int64_t>(b_bytes / (granules_of(kernel, k_used) * b_granule_bytes(kernel)), 1);
  block_panels = ceil_div(b.panels(), ceil_div(b.panels(), most));
  if (b.packs_lines()) {
    block_panels = round_up(block_panels, std::max<int64_t>(kLineBytes / b.panel_row_bytes(), 1));
  }
  n_blocks = ceil_div(b.panels(), block_panels) * b.halves();
  keeps_a = fits && n_blocks > 1;
  packs_beside = (b.packs_lines() || b.packs_columns_beside()) && tiles > 1;
}

Block BlockCut::block_at(int64_t index) const {
  const BSource& b = unit_.b;
  const int64_t k = unit_.k;
  if (index >= count()) return {};
  Block block{};
  block.k_index = index % k_blocks;
  const int64_t number = index / k_blocks;
  block.half = number % b.halves();
  const int64_t first = std::min(number / b.halves() * block_panels, b.panels());
  block.panel = block.half * b.panels() + first;
  block.panels = std::min(block_panels, b.panels() - first);
  block.full_panels = std::clamp<int64_t>(b.full_panels() - first, 0, block.panels);
  block.k0 = std::min(block.k_index * k_block, k);
  block.k = std::min(k_block, k - block.k0);
  block.last = block.k_index == k_blocks - 1;
  return block;
}

}  // namespace cadre::cpu
