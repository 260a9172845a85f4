// One work unit while it runs: what gemm_unit.cc (shared parts), unit_blocked.cc and
// unit_packing.cc (many rows), unit_resident.cc (few rows) and unit_turned.cc (B as it lies) know
// of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "cpu/gemm_unit.h"
#include "cpu/scratch.h"

namespace cadre::cpu {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// The rest of a matrix from element [row, col] on.
inline MatrixRef part(const MatrixRef& matrix, int64_t row, int64_t col) {
  return {element_at(matrix, row, col), matrix.dtype, matrix.row_stride, matrix.col_stride};
}

/// Pieces of these sizes, one after the other, in the thread's scratch memory, each on cache lines
/// of its own; false when there is no memory.
template <size_t kPieces>
bool take_scratch(const int64_t (&sizes)[kPieces], char* (&pieces)[kPieces]) {
  const auto padded = [](int64_t bytes) { return round_up(bytes, 64) + 64; };
  int64_t total = 0;
  for (const int64_t bytes : sizes) total += padded(bytes);
  Scratch* const scratch = Scratch::of_this_thread();
  if (scratch == nullptr) return false;
  auto* next = static_cast<char*>(scratch->reserve(static_cast<size_t>(total)));
  if (next == nullptr) return false;
  for (size_t i = 0; i < kPieces; ++i) {
    pieces[i] = next;
    next += padded(sizes[i]);
  }
  return true;
}

/// Cache lines that a walk will ask for.
int64_t lines_of(const PrefetchWalk& walk);
/// Asks at once for all that is left of a walk.
void prefetch_all(PrefetchWalk* walk);

class UnitRun {
 public:
  UnitRun(const WorkUnit& unit, const GemmPlan& plan)
      : unit_(unit),
        item_(*unit.item),
        kernel_(*plan.kernel),
        blocking_(plan.blocking),
        threads_(plan.threads),
        rows_(unit.m_end - unit.m_begin),
        cols_(unit.n_end - unit.n_begin),
        panels_(ceil_div(cols_, kernel_.nr)),
        full_panels_(cols_ / kernel_.nr),
        a_(part(item_.a, unit.m_begin, 0)),
        b_(part(item_.b, 0, unit.n_begin)),
        few_rows_(columns_rows()),
        tiles_(few_rows_ == 0 ? ceil_div(rows_, kernel_.mr)
                              : 1 + ceil_div(std::max<int64_t>(rows_ - few_rows_, 0), kernel_.mr)),
        first_rows_(few_rows_ == 0 ? rows_ / tiles_ : std::min(few_rows_, ceil_div(rows_, tiles_))),
        plain_out_(is_plain_out()),
        past_cache_(is_past_cache()) {}

  /// They return false when there is no memory.
  bool blocked(SharedBlock* shared);
  bool resident();
  bool turned();
  /// Of many rows, what is left when other threads have nothing to do.
  bool can_share() const;
  /// Takes row tiles of a block that the unit's owner shares.
  void help(SharedBlock* shared);

 private:
  int64_t granules_of(int64_t k) const {
    return ceil_div(round_up(k, kernel_.k_step), kernel_.granule_k);
  }
  int64_t a_tile_bytes() const { return kernel_.mr * kPackedRowStride * kernel_.granule_bytes; }
  int64_t b_granule_bytes() const { return int64_t{kernel_.nr} * kernel_.granule_bytes; }
  /// From one packed panel to the next. Panels that are written side by side, a row of each in
  /// turn, would share two sets of L1 if they were a power of two apart: then two lines more.
  int64_t b_panel_bytes(int64_t k) const {
    return granules_of(k) * b_granule_bytes() + (packs_rows() ? 128 : 0);
  }
  int64_t acc_tile_bytes() const {
    return int64_t{kernel_.mr} * kernel_.nr * static_cast<int64_t>(size_of(kernel_.acc_dtype));
  }
  /// The same for a row tile whose panels pass in turn: no larger than its rows, so that the sums
  /// of all panels take little of L1.
  int64_t streamed_acc_bytes() const { return acc_tile_bytes() / kernel_.mr * tile_rows(0); }
  /// Rows are dealt out evenly, 16 rows of a 14-row tile as 8 and 8, but for a first tile that can
  /// only have few.
  int64_t tile_begin(int64_t tile) const {
    if (few_rows_ == 0 || tiles_ == 1) return rows_ * tile / tiles_;
    return tile == 0 ? 0 : first_rows_ + (rows_ - first_rows_) * (tile - 1) / (tiles_ - 1);
  }
  int tile_rows(int64_t tile) const {
    return static_cast<int>(tile_begin(tile + 1) - tile_begin(tile));
  }
  int64_t panel_cols(int64_t panel) const {
    return std::min<int64_t>(kernel_.nr, cols_ - panel * kernel_.nr);
  }
  int64_t bias_bytes() const { return item_.bias.data ? panels_ * kernel_.nr * 8 : 0; }
  /// Steps of a multiplication in which the kernel advances a prefetch walk.
  int64_t prefetch_steps(int64_t k) const { return std::max<int64_t>(granules_of(k) / 16, 1); }

  /// The kernel can read B as it lies, with columns next to each other or contiguous along k; what
  /// doesn't fill a granule or, along k, a vector, must be packed.
  bool takes_source() const {
    return !unit_.packed && (b_.dtype == kernel_.source_dtype ||
                             (kernel_.widened_dtypes >> static_cast<int>(b_.dtype) & 1) != 0);
  }
  bool reads_source() const { return takes_source() && b_.col_stride == 1; }
  bool reads_unpacked(int64_t k) const {
    if (few_rows_ > 0) return k % kernel_.column_k == 0;
    // A kernel that multiplies faster than it packs packs whole blocks or pieces for its row tiles,
    // with nothing in between.
    if ((!unit_.resident || tiles_ > 1) && kernel_.pack_cost >= kernel_.mr) return false;
    return reads_source() && k % kernel_.k_step == 0;
  }
  /// Few threads read fastest in the order of addresses; many together wait for memory, whose lanes
  /// rows and columns side by side fill better (16 threads: 1.1 to 2.1 times as fast).
  bool streams_in_order() const { return kernel_.streams_in_order && threads_ <= 4; }
  bool streams_rows_in_order() const { return kernel_.rows_in_order && streams_in_order(); }
  /// Rows for which it can read columns that are contiguous along k; 0 where B has none. That pays
  /// where B comes straight from memory, not where a block of it is packed for many rows.
  int64_t columns_rows() const {
    const bool columns =
        unit_.resident && takes_source() && b_.row_stride == 1 && b_.col_stride != 1;
    return columns ? kernel_.column_rows : 0;
  }
  /// Panels of B from [k0, panel] on, for the first row tile to read where they lie and, given
  /// memory, to leave behind packed.
  void point_at_source(int64_t k0, int64_t panel, char* packed, TileArgs* args) const;

  /// Panels of the unit that were packed before; k0 is where a block of k starts.
  const char* packed_at(int64_t k0, int64_t panel) const {
    const PackedLayout& layout = unit_.packed->layout;
    return unit_.packed->data +
           layout.offset_bytes(k0 / layout.k_block, unit_.n_begin / kernel_.nr + panel);
  }

  bool is_plain_out() const;
  bool is_past_cache() const;
  /// Lets the kernel store finished sums from a row on straight into D, where D takes them as they
  /// are and the panels are whole.
  bool point_at_out(int64_t row, int64_t panel, TileArgs* args) const;
  /// The epilogue of consecutive rows and panels.
  void finish(int64_t row, int rows, int64_t panel, int64_t panels, const char* acc,
              int64_t acc_panel_bytes) const;
  const void* widen_bias(char* memory) const;

  /// The source of k values and panels of B, as rows of memory to prefetch.
  PrefetchWalk walk_over(int64_t k0, int64_t k, int64_t panel, int64_t panels) const;
  /// The source of a row tile's k values.
  PrefetchWalk walk_over_rows(int64_t tile, int64_t k0, int64_t k) const;

  /// Many rows: how B is cut into blocks. They are worked on in the order of k, then of columns.
  struct Blocks {
    int64_t k_count, k;       ///< blocks along k, and k values of one
    int64_t n_count, panels;  ///< blocks along n, and panels of one
    bool keeps_a;             ///< packed A stays for the next block of columns
  };
  struct Block {
    int64_t k_index, k0, k;
    int64_t panel, panels;  ///< the first one, of the unit, and how many
    int64_t full_panels;
    bool last;  ///< of k
  };
  Blocks cut_into_blocks() const;
  Block block_at(const Blocks& blocks, int64_t index) const;
  bool fits_packed_a() const;
  /// Where a row tile of a kept A begins.
  int64_t kept_a_offset(const Block& block, int64_t tile) const {
    return (block.k_index * rows_ + tile_begin(tile)) * kPackedRowStride * kernel_.granule_bytes;
  }
  PrefetchWalk walk_over_packed_rows(const char* tile_a, int64_t tile, int64_t k) const;
  /// One row tile against packed panels of a block.
  TileArgs packed_args(const Block& block, int64_t tile, const char* a, const char* b,
                       char* acc) const;
  const void* a_surplus(const void* packed_rows) const {
    return static_cast<const char*>(packed_rows) + kSurplusGranule * kernel_.granule_bytes;
  }
  void finish_tile(const Block& block, int64_t tile, const char* acc) const;
  void share_block(const Blocks& blocks, const SharedBlock::Work& work, char* b_memory,
                   SharedBlock* shared);
  void take_tiles(const Blocks& blocks, char* own_acc, SharedBlock* shared);
  bool packs_by_panels(const Block& block, int64_t source_panels) const;
  void pack_and_multiply(const TileArgs& args, const Block& block, int64_t begin,
                         PrefetchWalk* then, char* b_memory) const;
  bool packs_beside() const;
  CopyWalk copy_of(const Block& block, char* b_memory) const;
  /// Whether the kernel packs B from its rows as they lie, whole lines of them.
  bool packs_rows() const {
    return kernel_.pack_rows != nullptr && !unit_.packed && b_.col_stride == 1 &&
           b_.dtype == kernel_.source_dtype;
  }
  /// Panels in a line of such a row.
  int64_t line_panels() const {
    return std::max<int64_t>(kStripBytes / (kernel_.nr * static_cast<int64_t>(size_of(b_.dtype))),
                             1);
  }
  int64_t walked_panels(const Block& block) const;
  RowWalk rows_of(const Block& block, char* b_memory) const;
  bool takes_panels(const Block& block) const;
  void multiply_by_panels(const Block& block, const Block& next, char* a, char* b, char* acc,
                          int64_t acc_tile_stride) const;
  void multiply_panel(const Block& block, int64_t panel, const char* a, const char* b, char* acc,
                      int64_t acc_tile_stride, PrefetchWalk* walk) const;
  void pack_block(const Block& block, int64_t begin, char* b_memory) const;
  void multiply_tile(const TileArgs& args, const Block& block, int64_t tile, int64_t begin,
                     int64_t end, PrefetchWalk* first_walk, PrefetchWalk* walk) const;

  void pack_rows_turned(int64_t row, int64_t rows, char* packed) const;

  struct Piece {
    int64_t k, panels;
  };
  struct Chunks {
    int64_t piece_k, k_pieces;  ///< k values of a piece, and pieces of a panel
    int64_t pieces;             ///< of a chunk
  };
  int64_t chunk_pieces(const Piece& piece, int64_t k_pieces) const;
  PrefetchWalk next_chunk(const Chunks& chunks, int64_t i) const;
  void stream_pieces(const Piece& piece, const char* a, char* b, char* acc) const;
  void stream_rows(const char* a, char* b, char* acc) const;
  bool is_one_stream() const;
  Piece streamed_piece() const;
  PrefetchWalk next_rows(const Piece& piece, int64_t k0, int64_t k, int64_t k_end, int64_t panel,
                         TileArgs* args) const;
  void stream_columns(const Piece& piece, const char* a, char* b, char* acc, int64_t panel) const;
  void multiply_piece(const char* a, int64_t k0, int64_t k, int64_t tile, TileArgs args) const;

  const WorkUnit& unit_;
  const GemmItem& item_;
  const GemmKernel& kernel_;
  const Blocking& blocking_;
  int threads_;
  int64_t rows_, cols_, panels_, full_panels_;
  MatrixRef a_, b_;
  int64_t few_rows_, tiles_, first_rows_;
  bool plain_out_, past_cache_;
  const void* bias_ = nullptr;
};

}  // namespace cadre::cpu
