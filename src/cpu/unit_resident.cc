// Few rows: all of A stays packed in cache and B passes once, straight from memory.
#include "cpu/unit_run.h"

namespace cadre::cpu {

bool UnitRun::resident() {
  const int64_t segment_k = kMaxGranules * kernel_.granule_k;
  const int64_t segments = std::max<int64_t>(ceil_div(item_.k, segment_k), 1);
  const bool along_n = b_.col_stride == 1 && !unit_.packed;
  const bool unpacked = tiles_ == 1 && reads_source();
  // Where B is contiguous along n, pieces side by side keep to the same rows of memory.
  const auto size = static_cast<int64_t>(size_of(b_.dtype));
  const int64_t side_by_side = std::max<int64_t>(blocking_.row_bytes / (kernel_.nr * size), 1);
  Piece piece{.k = blocking_.piece_k, .panels = along_n ? std::min(side_by_side, panels_) : 1};
  if (unit_.packed) piece.k = unit_.packed->layout.k_block;
  const int64_t acc_panels = unpacked ? panels_ : piece.panels;
  const int64_t sizes[] = {segments * tiles_ * a_tile_bytes(),
                           unit_.packed ? 0 : b_panel_bytes(piece.k),
                           acc_panels * tiles_ * acc_tile_bytes(), bias_bytes()};
  char* pieces[std::size(sizes)];
  if (!take_scratch(sizes, pieces)) return false;
  const auto [a_packed, b_packed, acc, bias_memory] = pieces;
  bias_ = widen_bias(bias_memory);

  // A: all rows, in segments of k that a packed row can hold.
  for (int64_t segment = 0; segment < segments; ++segment) {
    const int64_t k0 = segment * segment_k;
    for (int64_t tile = 0; tile < tiles_; ++tile) {
      kernel_.pack_a(part(a_, tile_begin(tile), k0), tile_rows(tile),
                     std::min(segment_k, item_.k - k0),
                     a_packed + (segment * tiles_ + tile) * a_tile_bytes());
    }
  }
  if (unpacked) {
    stream_rows(a_packed, b_packed, acc);
  } else {
    stream_pieces(piece, a_packed, b_packed, acc);
  }
  return true;
}

/// B passes in pieces, all of k for some panels before the next. Each panel of a piece is packed
/// (by the first row tile, if it can read it as it lies) and used at once, while the next piece is
/// on its way from memory.
void UnitRun::stream_pieces(const Piece& piece, const char* a, char* b, char* acc) const {
  const int64_t k_pieces = std::max<int64_t>(ceil_div(item_.k, piece.k), 1);
  const int64_t pieces = k_pieces * ceil_div(panels_, piece.panels);
  const int64_t acc_panel_bytes = tiles_ * acc_tile_bytes();
  const Chunks chunks{piece.k, k_pieces, chunk_pieces(piece, k_pieces)};
  PrefetchWalk next;
  for (int64_t i = 0; i < pieces; ++i) {
    const int64_t k0 = i % k_pieces * piece.k;
    const int64_t k = std::min(piece.k, item_.k - k0);
    const int64_t panel0 = i / k_pieces * piece.panels;
    const int64_t panels = std::min(piece.panels, panels_ - panel0);
    const int64_t next_k0 = (i + 1) % k_pieces * piece.k;
    const int64_t next_panel = (i + 1) / k_pieces * piece.panels;
    const bool source = reads_unpacked(k);
    const bool in_order = source && few_rows_ > 0 && streams_in_order();
    if (in_order) {
      if (i % k_pieces % chunks.pieces == 0) next = next_chunk(chunks, i);
    } else if (i + 1 < pieces && !source) {
      next = walk_over(next_k0, std::min(piece.k, item_.k - next_k0), next_panel, piece.panels);
      next.lines = ceil_div(lines_of(next), panels * tiles_ * prefetch_steps(k));
      // A single tile has too few steps to spread the prefetches over: ask before packing.
      if (tiles_ == 1) prefetch_all(&next);
    }
    const int64_t ahead_bytes =
        i + 1 < pieces && !in_order
            ? static_cast<const char*>(element_at(b_, next_k0, next_panel * kernel_.nr)) -
                  static_cast<const char*>(element_at(b_, k0, panel0 * kernel_.nr))
            : 0;
    for (int64_t panel = panel0; panel < panel0 + panels; ++panel) {
      const bool from_source = source && panel < full_panels_;
      if (!from_source && !unit_.packed) {
        kernel_.pack_b(part(b_, k0, panel * kernel_.nr), k, panel_cols(panel), b,
                       tiles_ == 1 ? ahead_bytes : 0);
      }
      char* const panel_acc = acc + (panel - panel0) * acc_panel_bytes;
      for (int64_t tile = 0; tile < tiles_; ++tile) {
        TileArgs args{.b = unit_.packed ? packed_at(k0, panel) : b,
                      .b_granule_bytes = b_granule_bytes(),
                      .acc = panel_acc + tile * acc_tile_bytes(),
                      .acc_panel_bytes = acc_tile_bytes(),
                      .panels = 1,
                      .prefetch = &next};
        if (from_source && tile == 0) {
          point_at_source(k0, panel, tiles_ > 1 ? b : nullptr, &args);
          args.b_ahead_bytes = ahead_bytes;
        }
        const bool last = k0 + k >= item_.k;
        const bool stored = last && point_at_out(tile_begin(tile), panel, &args);
        multiply_piece(a, k0, k, tile, args);
        if (last && !stored) {
          finish(tile_begin(tile), tile_rows(tile), panel, 1, panel_acc + tile * acc_tile_bytes(),
                 acc_tile_bytes());
        }
      }
    }
    if (!in_order) prefetch_all(&next);
  }
}

/// Pieces of a panel whose source is prefetched at a time, in the order of addresses.
int64_t UnitRun::chunk_pieces(const Piece& piece, int64_t k_pieces) const {
  const int64_t bytes = piece.k * kernel_.nr * static_cast<int64_t>(size_of(b_.dtype));
  return std::clamp<int64_t>(blocking_.chunk_bytes / bytes, 1, k_pieces);
}

/// The source of the chunk after the one that starts with piece i, spread over the products of the
/// latter.
PrefetchWalk UnitRun::next_chunk(const Chunks& chunks, int64_t i) const {
  const int64_t first = i % chunks.k_pieces;
  const int64_t end = std::min(first + chunks.pieces, chunks.k_pieces);
  const bool same_panel = end < chunks.k_pieces;
  const int64_t k0 = same_panel ? end * chunks.piece_k : 0;
  const int64_t k = std::min(chunks.pieces * chunks.piece_k, item_.k - k0);
  PrefetchWalk walk = walk_over(k0, k, i / chunks.k_pieces + (same_panel ? 0 : 1), 1);
  const int64_t steps = (end - first) * tiles_ * prefetch_steps(chunks.piece_k);
  walk.lines = ceil_div(lines_of(walk), steps);
  return walk;
}

/// k values [k0, k0 + k) of one row tile: a segment, or a piece, which divides one.
void UnitRun::multiply_piece(const char* a, int64_t k0, int64_t k, int64_t tile,
                             TileArgs args) const {
  const int64_t segment_k = kMaxGranules * kernel_.granule_k;
  const int64_t inside = k0 % segment_k;
  const char* const rows = a + (k0 / segment_k * tiles_ + tile) * a_tile_bytes();
  PrefetchWalk none;
  args.rows = tile_rows(tile);
  args.a = rows + inside / kernel_.granule_k * kernel_.granule_bytes *
                      (kernel_.interleaves_a ? args.rows : 1);
  args.granules = granules_of(k);
  args.first = k0 == 0;
  // The surplus is that of a whole segment: take it off with the segment's last piece.
  if (inside + k == segment_k || k0 + k == item_.k) {
    args.a_surplus = a_surplus(rows);
  }
  if (!args.prefetch) args.prefetch = &none;
  kernel_.multiply(args);
}

/// For a single row of A the sums of a whole row of B stay in L1, so it needs no rows of B side by
/// side, and where these follow one another B is one stream, which memory serves best. A panel's
/// part of a row must be worth reading and writing its sums for.
bool UnitRun::is_one_stream() const {
  constexpr int64_t kMinPanelBytes = 128;
  const int64_t panel_bytes = kernel_.nr * static_cast<int64_t>(size_of(b_.dtype));
  return rows_ == 1 && kernel_.granule_k == 1 && streams_rows_in_order() &&
         panel_bytes >= kMinPanelBytes && full_panels_ * panel_bytes <= blocking_.single_bytes &&
         b_.row_stride < (full_panels_ + 1) * kernel_.nr;
}

/// Rows of B side by side and, of these, panels before the next rows. A single row of A reads half
/// as many fastest, where each is asked for behind its own (one thread: 2 %; four rows lose as
/// much).
UnitRun::Piece UnitRun::streamed_piece() const {
  if (is_one_stream()) return {.k = 1, .panels = std::max<int64_t>(full_panels_, 1)};
  const int64_t row_bytes = kernel_.nr * static_cast<int64_t>(size_of(b_.dtype));
  const bool halves =
      rows_ == 1 && kernel_.granule_k == 1 && streams_in_order() && !streams_rows_in_order();
  const int64_t k = halves ? blocking_.stream_k / 2 : blocking_.stream_k;
  return {.k = k, .panels = std::max<int64_t>(blocking_.stream_bytes / (k * row_bytes), 1)};
}

/// One row tile, and B as it lies: a few rows of it at a time, in address order. Columns and k
/// values that fill no panel and no granule are packed.
void UnitRun::stream_rows(const char* a, char* b, char* acc) const {
  const Piece piece = streamed_piece();
  for (int64_t panel = 0; panel < full_panels_; panel += piece.panels) {
    stream_columns({piece.k, std::min(piece.panels, full_panels_ - panel)}, a, b, acc, panel);
  }
  if (full_panels_ < panels_) stream_columns({blocking_.stream_k, 1}, a, b, acc, full_panels_);
}

/// What is prefetched while k values [k0, k0 + k) are used, in pieces: those of the next piece, in
/// the order of addresses where a panel's part of a row is whole lines, else each row behind its
/// own. A single stream is the hardware's.
PrefetchWalk UnitRun::next_rows(const Piece& piece, int64_t k0, int64_t k, int64_t k_end,
                                int64_t panel, TileArgs* args) const {
  const int64_t row_bytes = kernel_.nr * static_cast<int64_t>(size_of(b_.dtype));
  if (piece.k == 1) return {};
  if (!streams_rows_in_order() || row_bytes % 64 != 0) {
    args->b_ahead_bytes = blocking_.stream_k * args->b_k_bytes;
    return {};
  }
  const int64_t next = k0 + piece.k;
  PrefetchWalk walk = walk_over(next, std::min(k, k_end - next), panel, piece.panels);
  walk.lines =
      ceil_div(ceil_div(walk.row_bytes, 64) * piece.k, piece.panels * prefetch_steps(piece.k));
  return walk;
}

/// All of k for some panels, whole ones or the last, cut-off one.
void UnitRun::stream_columns(const Piece& piece, const char* a, char* b, char* acc,
                             int64_t panel) const {
  const int64_t panels = piece.panels;
  const int64_t segment_k = kMaxGranules * kernel_.granule_k;
  const int64_t source_k = panel < full_panels_ ? item_.k / kernel_.k_step * kernel_.k_step : 0;
  const int64_t acc_bytes = streamed_acc_bytes();
  char* const first_acc = acc + panel * acc_bytes;
  bool stored = false;
  int64_t k0 = 0;
  do {
    const bool source = k0 < source_k;
    // As it lies, as much as packed rows of A hold; packed, a piece.
    const int64_t k = source ? std::min(segment_k, source_k - k0) : std::min(piece.k, item_.k - k0);
    const bool last = k0 + k >= item_.k;
    TileArgs args{.acc = first_acc, .acc_panel_bytes = acc_bytes};
    if (source) {
      args.panels = panels;
      args.block_granules = granules_of(piece.k);
      point_at_source(k0, panel, nullptr, &args);
      PrefetchWalk next = next_rows(piece, k0, k, source_k, panel, &args);
      args.prefetch = &next;
      stored = last && point_at_out(0, panel, &args);
      multiply_piece(a, k0, k, 0, args);
    } else {
      args.panels = 1;
      args.b = b;
      args.b_granule_bytes = b_granule_bytes();
      for (int64_t i = panel; i < panel + panels; ++i) {
        kernel_.pack_b(part(b_, k0, i * kernel_.nr), k, panel_cols(i), b, 0);
        args.acc = acc + i * acc_bytes;
        stored = last && point_at_out(0, i, &args);
        multiply_piece(a, k0, k, 0, args);
      }
    }
    k0 += k;
  } while (k0 < item_.k);
  if (!stored) finish(0, tile_rows(0), panel, panels, first_acc, acc_bytes);
}

}  // namespace cadre::cpu
