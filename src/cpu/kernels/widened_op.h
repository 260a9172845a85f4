// The inner loop's view of one value a granule, widened exactly to f32 or f64: the Op, and the
// Source of a B of 16 bits. For kernel files only.
#pragma once

#include "cpu/kernels/tile.h"

namespace cadre::cpu {
namespace {

// A fused (or, without FMA instructions, rounded) multiply and add.
template <class V, int kMaxRowsOfTile, int kVectorsOfTile>
struct WidenedOp {
  using Acc = typename V::Reg;
  using Vec = typename V::Reg;
  using Elem = typename V::Elem;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kVectors = kVectorsOfTile;
  static constexpr int kMaxRows = kMaxRowsOfTile;
  static constexpr int kGranuleBytes = sizeof(Elem);
  static constexpr int kGranuleK = 1;
  static constexpr bool kSubtractsSurplus = false;
  static constexpr int64_t kSourceRowBytes = int64_t{kVectors} * kLanes * kGranuleBytes;
  static constexpr int kColumnRows = kMaxRows < kMaxColumnRows ? kMaxRows : kMaxColumnRows;

  static Acc zero() { return V::zero(); }
  static Acc load_acc(const char* p) {
    return V::load(reinterpret_cast<const Elem*>(p), V::kLanes);
  }
  static Vec load_b(const char* p) { return V::load(reinterpret_cast<const Elem*>(p), V::kLanes); }
  static Vec broadcast_a(const char* p) { return V::set1(*reinterpret_cast<const Elem*>(p)); }
  static Acc multiply_add(Acc acc, Vec a, Vec b) { return V::fma(a, b, acc); }
  static void store_acc(char* p, Acc acc) { V::store(reinterpret_cast<Elem*>(p), acc); }
  static void store_past_cache(char* p, Acc acc) {
    V::store_past_cache(reinterpret_cast<Elem*>(p), acc);
  }
  static void finish_past_cache() { V::finish_past_cache(); }
  static void load_source(const char* row, int64_t, Vec (&b)[kVectors]) {
    for (int v = 0; v < kVectors; ++v) b[v] = load_b(row + int64_t{v} * kLanes * kGranuleBytes);
  }
  static void store_b(char* p, Vec b) { store_acc(p, b); }
  static Vec load_column(const char* p) { return load_b(p); }
  static void transpose(Vec (&block)[kLanes]) { V::transpose(block); }
};

// A B of type T, half as wide as V's elements, is widened in registers: its rows by the load, its
// columns after they are transposed.
template <class V, class T, int kVectors>
struct HalfSource {
  using Column = typename V::Pairs;
  static constexpr DType kDType = T::kDType;
  static constexpr int64_t kSourceRowBytes = int64_t{kVectors} * V::kLanes * sizeof(T);
  static constexpr int kColumnGranules = 2;

  static void load_source(const char* row, int64_t, typename V::Reg (&b)[kVectors]) {
    for (int v = 0; v < kVectors; ++v)
      b[v] = V::load(reinterpret_cast<const T*>(row) + v * V::kLanes, V::kLanes);
  }
  static Column load_column(const char* p) { return V::load_pairs(p); }
  static constexpr int kColumnParts = V::pair_parts(T{});
  static void transpose(Column (&block)[V::kLanes]) { V::gather_pairs(block, T{}); }
  static void transpose_part(Column (&block)[V::kLanes], int part) {
    V::transpose_pairs(block, part, T{});
  }
  static typename V::Reg granule(const Column (&block)[V::kLanes], int i) {
    return V::widen_pair(block, i, T{});
  }
};

}  // namespace
}  // namespace cadre::cpu
