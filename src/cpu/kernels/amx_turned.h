// AMX products turned over, B'A' instead of AB: columns of B that are contiguous along k are what
// tile registers want of the left factor's rows, so they are loaded as they lie and never packed.
// Instead the rows of A are packed as the right factor, and the sums are turned back at the end.
// For kernel files only.
#pragma once

#include "cpu/kernels/amx_tiles.h"

namespace cadre::cpu {
namespace {

// As advance_prefetch, with few instructions where the lines are of one row: they are what few rows
// of A have to wait for.
inline void prefetch_lines(PrefetchWalk& walk) {
  const int64_t bytes = walk.lines * 64;
  if (walk.rows_left == 0 || walk.column_bytes + bytes > walk.row_bytes)
    return advance_prefetch(walk, walk.lines);
  const char* const begin = walk.row + walk.column_bytes;
#pragma GCC unroll 4
  for (const char* p = begin; p != begin + bytes; p += 64) __builtin_prefetch(p, 0, 2);
  walk.column_bytes += bytes;
  if (walk.column_bytes < walk.row_bytes) return;
  walk.column_bytes = 0;
  walk.row += walk.stride_bytes;
  --walk.rows_left;
}

// Four sums [column][row] on their way back to rows of the result, a block of 16 x 16 at a time.
// That is done beside the products of the next panel, which leave vector units idle.
class TurnBack {
 public:
  // Takes over what the tiles of the sums hold.
  template <bool kRight>
  void begin(char* to, int64_t row_bytes, int rows) {
    finish();
    char* const bottom = sums_ + kTileRows * kPanelRowBytes;
    _tile_stored(0, sums_, kPanelRowBytes);
    _tile_stored(2, bottom, kPanelRowBytes);
    if constexpr (kRight) {
      _tile_stored(1, sums_ + kTileBytes, kPanelRowBytes);
      _tile_stored(3, bottom + kTileBytes, kPanelRowBytes);
    }
    to_ = to, row_bytes_ = row_bytes, rows_ = rows;
    blocks_left_ = kRight ? 4 : 2;
  }
  void advance() {
    if (blocks_left_ == 0) return;
    --blocks_left_;
    const int64_t column = blocks_left_ % 2 * kTileRows, row = blocks_left_ / 2 * kTileRows;
    __m512i block[kTileRows];
    for (int i = 0; i < kTileRows; ++i)
      block[i] = _mm512_load_si512(sums_ + (column + i) * kPanelRowBytes + row * 4);
    transpose_lanes(block);
    char* to = to_ + row * row_bytes_ + column * 4;
    const int64_t rows = rows_ - row;
    if (rows >= kTileRows) {
      for (int i = 0; i < kTileRows; ++i) _mm512_storeu_si512(to + i * row_bytes_, block[i]);
    } else {
      for (int i = 0; i < rows; ++i) _mm512_storeu_si512(to + i * row_bytes_, block[i]);
    }
  }
  void finish() {
    while (blocks_left_ > 0) advance();
  }

 private:
  alignas(64) char sums_[kNr * kPanelRowBytes];
  char* to_ = nullptr;
  int64_t row_bytes_ = 0;
  int64_t rows_ = 0, blocks_left_ = 0;
};

// One panel of B against one of rows. Tiles of B pass once for each, past L1; a tile is loaded as
// soon as the last product that needs its register has begun.
template <class Product, bool kRight>
inline void multiply_turned_panel(const TileArgs& t, const char* a, const char* b, TurnBack& back) {
  const int64_t steps = t.granules / kStepGranules;
  const int64_t b_bytes = t.b_column_bytes;
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (kRight) {
    _tile_zero(1);
    _tile_zero(3);
  }
  _tile_loadd(6, a, kPanelRowBytes);
  _tile_stream_loadd(4, b, b_bytes);
  if constexpr (kRight) _tile_loadd(7, a + kTileBytes, kPanelRowBytes);
  _tile_stream_loadd(5, b + kTileRows * b_bytes, b_bytes);
  for (int64_t step = 1; step < steps; ++step) {
    prefetch_lines(*t.prefetch);
    a += kStepGranules * kPanelRowBytes;
    b += kTileBytes;
    Product::top_left();
    if constexpr (kRight) Product::top_right();
    _tile_stream_loadd(4, b, b_bytes);
    Product::bottom_left();
    _tile_loadd(6, a, kPanelRowBytes);
    if constexpr (kRight) {
      Product::bottom_right();
      _tile_loadd(7, a + kTileBytes, kPanelRowBytes);
    }
    _tile_stream_loadd(5, b + kTileRows * b_bytes, b_bytes);
    back.advance();
  }
  prefetch_lines(*t.prefetch);
  Product::top_left();
  Product::bottom_left();
  if constexpr (kRight) {
    Product::top_right();
    Product::bottom_right();
  }
}

// Panels of B against all rows, one panel of them after the other.
template <class Product>
void multiply_turned(const TileArgs& t) {
  load_config(TileConfig(kTileRows, kTileRows));
  const int64_t row_bytes = t.out != nullptr ? t.out_row_bytes : kPanelRowBytes;
  TurnBack back;
  for (int64_t row = 0; row < t.rows; row += kNr) {
    const int rows = static_cast<int>(t.rows - row < kNr ? t.rows - row : kNr);
    const char* const a = static_cast<const char*>(t.a) + row / kNr * t.a_panel_bytes;
    const char* b = static_cast<const char*>(t.b);
    char* to = t.out != nullptr
                   ? static_cast<char*>(t.out) + row * row_bytes
                   : static_cast<char*>(t.acc) + row / kNr * t.panels * t.acc_panel_bytes;
    for (int64_t panel = 0; panel < t.panels; ++panel) {
      if (rows > kTileRows) {
        multiply_turned_panel<Product, true>(t, a, b, back);
        back.begin<true>(to, row_bytes, rows);
      } else {
        multiply_turned_panel<Product, false>(t, a, b, back);
        back.begin<false>(to, row_bytes, rows);
      }
      b += t.b_panel_bytes;
      to += t.out != nullptr ? t.out_panel_bytes : t.acc_panel_bytes;
    }
  }
  back.finish();
  _tile_release();
}

}  // namespace
}  // namespace cadre::cpu
