// Packing int8 B from rows as they lie (RowWalk), in whole lines: a panel of 32 columns is half a
// line wide, so two of them are made at a time. For kernel files with AVX-512.
#pragma once

#include "cpu/kernels/simd_avx512.h"
#include "cpu/kernels/tile.h"

namespace cadre::cpu {
namespace {

inline constexpr int64_t kQuad = 4;            // rows of a granule
inline constexpr int64_t kQuadRowBytes = 128;  // of a panel: 32 granules

// 16 bytes of four rows, side by side in a register, become 16 granules: first dwords change
// places, so that each lane has four columns of all rows, then its bytes.
struct alignas(64) QuadOrder {
  uint32_t dwords[16] = {};
  uint8_t bytes[64] = {};
};
constexpr QuadOrder quad_order() {
  QuadOrder order;
  for (size_t i = 0; i < 16; ++i) order.dwords[i] = static_cast<uint32_t>(i % 4 * 4 + i / 4);
  for (size_t i = 0; i < 64; ++i) order.bytes[i] = static_cast<uint8_t>(i % 4 * 4 + i % 16 / 4);
  return order;
}

// A batch of four rows: a row of granules for each of two panels. The loads put the parts of rows
// side by side, which takes half of the shuffles.
inline void pack_batch(const char* rows, int64_t k_bytes, char* to, int64_t panel_bytes) {
  static constexpr QuadOrder kOrder = quad_order();
  const __m512i dwords = _mm512_load_si512(kOrder.dwords);
  const __m512i bytes = _mm512_load_si512(kOrder.bytes);
  const auto part = [&](int64_t row, int64_t i) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * k_bytes + 16 * i));
  };
#pragma GCC unroll 4
  for (int64_t i = 0; i < 4; ++i) {
    __m512i x = _mm512_castsi128_si512(part(0, i));
    x = _mm512_inserti32x4(x, part(1, i), 1);
    x = _mm512_inserti32x4(x, part(2, i), 2);
    x = _mm512_inserti32x4(x, part(3, i), 3);
    x = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords, x), bytes);
    _mm512_storeu_si512(to + i / 2 * panel_bytes + i % 2 * 64, x);
  }
}

// So many batches, or what is left of them.
inline void pack_rows(RowWalk& walk, int64_t batches) {
  for (; batches > 0 && walk.granules_left > 0; --batches) {
    advance_prefetch(walk.ahead, kQuad);
    if (walk.wait > 0) {
      --walk.wait;
      continue;
    }
    pack_batch(walk.rows + walk.column_bytes, walk.k_bytes,
               walk.to + walk.column_bytes / kLineBytes * 2 * walk.panel_bytes, walk.panel_bytes);
    walk.column_bytes += kLineBytes;
    if (walk.column_bytes < walk.row_bytes) continue;
    walk.column_bytes = 0;
    walk.rows += kQuad * walk.k_bytes;
    walk.to += kQuadRowBytes;
    --walk.granules_left;
  }
}

// What is due in one of the steps over which the walk is spread.
inline void pack_rows_beside(RowWalk& walk) {
  walk.due += walk.per_step;
  pack_rows(walk, walk.due / kBatchUnit);
  walk.due %= kBatchUnit;
}

}  // namespace
}  // namespace cadre::cpu
