// Tile registers of AMX as the kernels use them: four sums, two tiles of A, two of B. For kernel
// files only.
#pragma once

#include "cpu/kernels/simd_avx512.h"
#include "cpu/kernels/tile.h"

namespace cadre::cpu {
namespace {

inline constexpr int kTileRows = 16;
inline constexpr int kTileBytes = 64;  // of one row
inline constexpr int kRows = 2 * kTileRows;
inline constexpr int kNr = 32;
inline constexpr int64_t kStepGranules = 16;
inline constexpr int64_t kPackedRowBytes = kPackedRowStride * 4;
inline constexpr int64_t kPanelRowBytes = int64_t{kNr} * 4;  // of packed B, and of the accumulators

// Tiles 0 to 3: accumulators (top left, top right, bottom left, bottom right); 4, 5: A; 6, 7: B.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  TileConfig(int top, int bottom) {
    const int heights[8] = {top, top, bottom, bottom, top, bottom, kTileRows, kTileRows};
    for (int tile = 0; tile < 8; ++tile) {
      if (heights[tile] == 0) continue;  // an unused tile has neither rows nor bytes
      rows[tile] = static_cast<uint8_t>(heights[tile]);
      row_bytes[tile] = kTileBytes;
    }
  }
};

// The instructions take tile numbers as constants, so the two types differ by macro-like functors.
struct ProductBf16 {
  static void top_left() { _tile_dpbf16ps(0, 4, 6); }
  static void top_right() { _tile_dpbf16ps(1, 4, 7); }
  static void bottom_left() { _tile_dpbf16ps(2, 5, 6); }
  static void bottom_right() { _tile_dpbf16ps(3, 5, 7); }
};
struct ProductInt8 {
  static void top_left() { _tile_dpbssd(0, 4, 6); }
  static void top_right() { _tile_dpbssd(1, 4, 7); }
  static void bottom_left() { _tile_dpbssd(2, 5, 6); }
  static void bottom_right() { _tile_dpbssd(3, 5, 7); }
};

// The accumulators of the next panel, 64 lines of which a step asks for four: a block of k has 16
// steps.
inline void prefetch_accumulators(const char* next, int64_t step) {
  constexpr int64_t kLines = kRows * kPanelRowBytes / 64, kLinesOfStep = 4;
  if (step >= kLines / kLinesOfStep) return;
  for (int64_t line = 0; line < kLinesOfStep; ++line)
    __builtin_prefetch(next + (step * kLinesOfStep + line) * 64, 1, 2);
}

inline void load_config(const TileConfig& config) {
  // GCC's intrinsic names only the first bytes as an input: keep the stores to the others.
  __asm__ volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// What is asked for in a step: the walk's lines, and the next panel's sums.
inline void prefetch_step(const TileArgs& t, int64_t panel, int64_t step) {
  advance_prefetch(*t.prefetch, t.prefetch->lines);
  if (t.first) return;
  prefetch_accumulators(static_cast<const char*>(t.acc) + (panel + 1) * t.acc_panel_bytes, step);
}

}  // namespace
}  // namespace cadre::cpu
