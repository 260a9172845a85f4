// A register tile of sums and what the inner loops of tile.h do with it. For kernel files only.
//
// A loop over a tile must be inlined before loops are unrolled, or the tile stays in memory (GCC 12
// let bf16 and int8 spill hundreds of registers): those that were not are told to be.
#pragma once

#include <cstdint>

#include "cpu/kernels/gemm_kernel.h"
#include "cpu/kernels/lines_ahead.h"

namespace cadre::cpu {
namespace {

// How the rows of packed A lie: one after the other, or a granule of each in turn.
template <class Op, int kRows>
struct PackedRows {
  static constexpr bool kInterleaved = requires { Op::kInterleavesA; };
  static constexpr int64_t kRowBytes = (kInterleaved ? 1 : kPackedRowStride) * Op::kGranuleBytes;
  static constexpr int64_t kStepBytes = (kInterleaved ? kRows : 1) * Op::kGranuleBytes;
};

// Loads of B and A for the inner loop, into the same registers again where the Op can and is asked
// to.
template <class Op, bool kAgain>
inline void read_b(typename Op::Vec& b, const char* p) {
  if constexpr (kAgain) {
    Op::reload_b(b, p);
  } else {
    b = Op::load_b(p);
  }
}
template <class Op, bool kAgain>
inline void read_a(typename Op::Vec& a, const char* p) {
  if constexpr (kAgain) {
    Op::rebroadcast_a(a, p);
  } else {
    a = Op::broadcast_a(p);
  }
}

template <class Op, int kRows>
using Tile = typename Op::Acc[kRows][Op::kVectors];
template <class Op>
inline constexpr int64_t kTileRowBytes = int64_t{Op::kVectors} * Op::kLanes* Op::kGranuleBytes;

template <class Op, int kRows>
inline void load_tile(Tile<Op, kRows>& acc, const char* memory) {
  constexpr int64_t kVecBytes = Op::kLanes * Op::kGranuleBytes;
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < Op::kVectors; ++v)
      acc[r][v] = Op::load_acc(memory + (r * Op::kVectors + v) * kVecBytes);
}

template <class Op, int kRows>
[[gnu::always_inline]] inline void store_rows(const Tile<Op, kRows>& acc, char* memory,
                                              int64_t row_bytes) {
  constexpr int64_t kVecBytes = Op::kLanes * Op::kGranuleBytes;
  for (int r = 0; r < kRows; ++r, memory += row_bytes)
    for (int v = 0; v < Op::kVectors; ++v) Op::store_acc(memory + v * kVecBytes, acc[r][v]);
}

// To the accumulators' own memory or, finished, to the result.
template <class Op, int kRows, bool kRounds = true>
inline void store_tile(const Tile<Op, kRows>& acc, const TileArgs& t, int64_t panel) {
  constexpr int64_t kVecBytes = Op::kLanes * Op::kGranuleBytes;
  const bool out = t.out != nullptr;
  char* memory = out ? static_cast<char*>(t.out) + panel * t.out_panel_bytes
                     : static_cast<char*>(t.acc) + panel * t.acc_panel_bytes;
  const int64_t row_bytes = out ? t.out_row_bytes : Op::kVectors * kVecBytes;
  if constexpr (kRounds && requires { Op::store_rounded; }) {
    if (out && t.out_rounded) {
      for (int r = 0; r < kRows; ++r, memory += row_bytes) {
        if (t.out_past_cache) {
          Op::store_rounded_past_cache(memory, acc[r]);
        } else {
          Op::store_rounded(memory, acc[r]);
        }
      }
      return;
    }
  }
  if (out && t.out_past_cache) {
    for (int r = 0; r < kRows; ++r, memory += row_bytes)
      for (int v = 0; v < Op::kVectors; ++v)
        Op::store_past_cache(memory + v * kVecBytes, acc[r][v]);
    return;
  }
  store_rows<Op, kRows>(acc, memory, row_bytes);
}

template <class Op, int kRows>
inline void subtract_surplus(Tile<Op, kRows>& acc, const TileArgs& t) {
  if constexpr (Op::kSubtractsSurplus) {
    if (t.a_surplus == nullptr) return;
    const char* surplus = static_cast<const char*>(t.a_surplus);
    for (int r = 0; r < kRows; ++r, surplus += kPackedRowStride * Op::kGranuleBytes)
      for (auto& x : acc[r]) x = Op::subtract_surplus(x, surplus);
  }
}

template <class Op, int kRows>
[[gnu::always_inline]] inline void zero_tile(Tile<Op, kRows>& acc) {
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < Op::kVectors; ++v) acc[r][v] = Op::zero();
}

// The products of one granule of B with the rows of the tile.
template <class Op, int kRows, bool kAgain>
[[gnu::always_inline]] inline void add_products(Tile<Op, kRows>& acc, typename Op::Vec& av,
                                                const char* a,
                                                const typename Op::Vec (&bv)[Op::kVectors]) {
  using Rows = PackedRows<Op, kRows>;
  for (int r = 0; r < kRows; ++r) {
    if constexpr (requires { Op::kFirstFoldedRow; }) {
      if (r >= Op::kFirstFoldedRow) {
        for (int v = 0; v < Op::kVectors; ++v)
          acc[r][v] = Op::multiply_add_folded(acc[r][v], a + r * Rows::kRowBytes, bv[v]);
        continue;
      }
    }
    read_a<Op, kAgain>(av, a + r * Rows::kRowBytes);
    for (int v = 0; v < Op::kVectors; ++v) acc[r][v] = Op::multiply_add(acc[r][v], av, bv[v]);
  }
}

// The lines of a granule of a B that is read as it lies.
template <class Op, class Source>
[[gnu::always_inline]] inline void prefetch_granule(const char* granule, int64_t k_bytes) {
  for (int p = 0; p < Op::kGranuleK; ++p)
    for (int64_t line = 0; line < Source::kSourceRowBytes; line += 64)
      __builtin_prefetch(granule + p * k_bytes + line, 0, 2);
}

// The accumulators of the tile after this one, two lines at a time.
template <class Op, int kRows>
inline void prefetch_tile(const char* next, int64_t granule) {
  constexpr int64_t kTileBytes = int64_t{kRows} * Op::kVectors * Op::kLanes * Op::kGranuleBytes;
  const int64_t offset = granule / kPrefetchGranules * 128;
  if (offset >= kTileBytes) return;
  __builtin_prefetch(next + offset, 1, 3);
  __builtin_prefetch(next + offset + 64, 1, 3);
}

// The rows of the result that this tile will be stored to, one at a time: stores to lines that are
// in no cache would otherwise hold up everything behind them.
template <class Op, int kRows>
inline void prefetch_out(const TileArgs& t, int64_t panel, int64_t granule) {
  const int64_t row = granule / kPrefetchGranules;
  if (row >= kRows) return;
  const char* const out = static_cast<const char*>(t.out) + panel * t.out_panel_bytes;
  for (int64_t byte = 0; byte < t.out_panel_bytes; byte += 64)
    __builtin_prefetch(out + row * t.out_row_bytes + byte, 1, 3);
}

}  // namespace
}  // namespace cadre::cpu
