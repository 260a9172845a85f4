// The inner loop: a register tile of rows x (kVectors * kLanes) accumulators, over one granule of k
// after another. Every output element is one chain of multiply-adds in ascending k, continued
// through memory between blocks of k, so its bits do not depend on the tile, the block or the
// thread it is computed in. For kernel files only.
#pragma once

#include <cstdint>
#include <utility>

#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {
namespace {

// An Op offers:
//   Acc, Vec, kLanes, kVectors (nr = kLanes * kVectors), kMaxRows (mr), kGranuleBytes,
//   kSubtractsPanelExtra Acc zero(), load_acc(const char*), Vec load_b(const char*), Vec
//   broadcast_a(const char*), Acc multiply_add(Acc, Vec a, Vec b), void store_acc(char*, Acc), Acc
//   subtract(Acc, Acc)
// kSubtractsPanelExtra: nr accumulators stored behind the panel are subtracted once for the panel.

// Prefetches are spread evenly over the loop: this many lines in every kPrefetchGranules steps.
inline constexpr int64_t kPrefetchGranules = 16;
inline constexpr int64_t kPrefetchLines = 8;

inline void advance_prefetch(PrefetchWalk& walk) {
  if (walk.rows_left == 0) return;
  for (int64_t line = 0; line < kPrefetchLines; ++line)
    __builtin_prefetch(walk.row + walk.column_bytes + line * 64, 0, 2);
  walk.column_bytes += kPrefetchLines * 64;
  if (walk.column_bytes >= walk.row_bytes) {
    walk.column_bytes = 0;
    walk.row += walk.stride_bytes;
    --walk.rows_left;
  }
}

template <class Op, int kRows>
void multiply_rows(const TileArgs& t) {
  constexpr int kV = Op::kVectors;
  constexpr int64_t kVecBytes = Op::kLanes * Op::kGranuleBytes;
  constexpr int64_t kRowBytes = kPackedRowStride * Op::kGranuleBytes;
  constexpr int64_t kAccRowBytes = kV * kVecBytes;
  const int64_t b_step = t.b_granule_bytes;
  for (int64_t panel = 0; panel < t.panels; ++panel) {
    const char* a = static_cast<const char*>(t.a);
    const char* b = static_cast<const char*>(t.b) + panel * t.b_panel_bytes;
    char* acc_memory = static_cast<char*>(t.acc) + panel * t.acc_panel_bytes;

    typename Op::Acc acc[kRows][kV];
    if (t.first) {
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kV; ++v) acc[r][v] = Op::zero();
    } else {
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kV; ++v)
          acc[r][v] = Op::load_acc(acc_memory + r * kAccRowBytes + v * kVecBytes);
    }

    const auto step = [&](const char* a_step, const char* b_row) __attribute__((always_inline)) {
      typename Op::Vec bv[kV];
      for (int v = 0; v < kV; ++v) bv[v] = Op::load_b(b_row + v * kVecBytes);
      for (int r = 0; r < kRows; ++r) {
        const typename Op::Vec av = Op::broadcast_a(a_step + r * kRowBytes);
        for (int v = 0; v < kV; ++v) acc[r][v] = Op::multiply_add(acc[r][v], av, bv[v]);
      }
    };
    int64_t left = t.granules;
    for (; left >= kPrefetchGranules; left -= kPrefetchGranules) {
      advance_prefetch(*t.prefetch);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kPrefetchGranules; ++i) {
        step(a, b);
        a += Op::kGranuleBytes;
        b += b_step;
      }
    }
    for (; left > 0; --left) {
      step(a, b);
      a += Op::kGranuleBytes;
      b += b_step;
    }

    if constexpr (Op::kSubtractsPanelExtra) {
      for (int v = 0; v < kV; ++v) {
        const typename Op::Acc extra = Op::load_acc(b + v * kVecBytes);
        for (int r = 0; r < kRows; ++r) acc[r][v] = Op::subtract(acc[r][v], extra);
      }
    }
    for (int r = 0; r < kRows; ++r)
      for (int v = 0; v < kV; ++v)
        Op::store_acc(acc_memory + r * kAccRowBytes + v * kVecBytes, acc[r][v]);
  }
}

template <class Op, int... kRowsMinusOne>
void multiply_dispatch(const TileArgs& args, std::integer_sequence<int, kRowsMinusOne...>) {
  using Function = void (*)(const TileArgs&);
  static constexpr Function kByRows[] = {&multiply_rows<Op, kRowsMinusOne + 1>...};
  kByRows[args.rows - 1](args);
}

template <class Op>
void multiply(const TileArgs& args) {
  multiply_dispatch<Op>(args, std::make_integer_sequence<int, Op::kMaxRows>{});
}

// One widened value a granule, a fused (or, without FMA instructions, rounded) multiply and add.
template <class V, int kMaxRowsOfTile, int kVectorsOfTile>
struct WidenedOp {
  using Acc = typename V::Reg;
  using Vec = typename V::Reg;
  using Elem = typename V::Elem;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kVectors = kVectorsOfTile;
  static constexpr int kMaxRows = kMaxRowsOfTile;
  static constexpr int kGranuleBytes = sizeof(Elem);
  static constexpr bool kSubtractsPanelExtra = false;

  static Acc zero() { return V::zero(); }
  static Acc load_acc(const char* p) {
    return V::load(reinterpret_cast<const Elem*>(p), V::kLanes);
  }
  static Vec load_b(const char* p) { return V::load(reinterpret_cast<const Elem*>(p), V::kLanes); }
  static Vec broadcast_a(const char* p) { return V::set1(*reinterpret_cast<const Elem*>(p)); }
  static Acc multiply_add(Acc acc, Vec a, Vec b) { return V::fma(a, b, acc); }
  static void store_acc(char* p, Acc acc) { V::store(reinterpret_cast<Elem*>(p), acc); }
  static Acc subtract(Acc a, Acc) { return a; }
};

}  // namespace
}  // namespace cadre::cpu
