// Many rows, several threads: the rest of a block of columns, once others have nothing left to do.
#include "cpu/unit_run.h"

namespace cadre::cpu {
namespace {

/// Rows from which on sharing gains: what is left of B is packed with nothing beside it, which
/// takes as long as a few rows of products.
constexpr int64_t kSharedRows = 128;

}  // namespace

/// Only where A stays packed.
bool UnitRun::can_share() const { return rows_ >= kSharedRows && cut_into_blocks().keeps_a; }

/// The rest of its B is packed first, for all blocks of k, so that nobody waits for anybody between
/// them.
void UnitRun::share_block(const Blocks& blocks, const SharedBlock::Work& work, char* b_memory,
                          SharedBlock* shared) {
  for (int64_t i = work.first_k_block + 1; i < blocks.k_count && !unit_.packed; ++i) {
    pack_block(block_at(blocks, work.column_block * blocks.k_count + i), 0,
               b_memory + i * blocks.panels * b_panel_bytes(blocks.k));
  }
  shared->open(work);
  take_tiles(blocks, work.acc, shared);
  shared->close();
}

void UnitRun::help(SharedBlock* shared) {
  const Blocks blocks = cut_into_blocks();
  Scratch* const scratch = Scratch::of_this_thread();
  if (scratch == nullptr) return;  // the owner does it all
  void* acc = scratch->reserve(static_cast<size_t>(blocks.panels * acc_tile_bytes()));
  if (acc != nullptr) take_tiles(blocks, static_cast<char*>(acc), shared);
}

/// Sums of several blocks of k continue in the owner's accumulators; otherwise each thread has a
/// tile of its own.
void UnitRun::take_tiles(const Blocks& blocks, char* own_acc, SharedBlock* shared) {
  const int64_t acc_bytes = blocks.panels * acc_tile_bytes();
  for (;;) {
    const SharedBlock::Tiles tiles = shared->take();
    if (tiles.begin == tiles.end) return;
    const SharedBlock::Work& work = shared->work();
    bias_ = work.bias;
    for (int64_t i = work.first_k_block; i < blocks.k_count; ++i) {
      const Block block = block_at(blocks, work.column_block * blocks.k_count + i);
      const bool first = i == work.first_k_block;
      const char* b = first ? work.first_b : work.b + i * blocks.panels * b_panel_bytes(blocks.k);
      for (int64_t tile = first ? std::max(tiles.begin, work.tiles_ahead) : tiles.begin;
           tile < tiles.end; ++tile) {
        const char* a = work.a + kept_a_offset(block, tile);
        char* acc = blocks.k_count > 1 ? work.acc + tile * acc_bytes : own_acc;
        PrefetchWalk next;
        if (tile + 1 < tiles.end) next = walk_over_packed_rows(a, tile, block.k);
        next.lines = ceil_div(lines_of(next), prefetch_steps(block.k));
        multiply_tile(packed_args(block, tile, a, b, acc), block, tile, 0, block.panels, &next,
                      &next);
        finish_tile(block, tile, acc);
      }
    }
    shared->finish(tiles);
  }
}

}  // namespace cadre::cpu
