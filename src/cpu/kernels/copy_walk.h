// Packing beside the products: between two steps of the inner loop four vector registers are free,
// enough to transpose 4 x 4 granules, and so are load and store slots. Internal linkage: kernel
// files and the driver are compiled for different instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {
namespace {

using FourGranules = uint32_t __attribute__((vector_size(16)));

inline FourGranules load_granules(const char* p) {
  FourGranules x;
  std::memcpy(&x, p, sizeof(x));
  return x;
}
inline void store_granules(char* p, FourGranules x) { std::memcpy(p, &x, sizeof(x)); }

inline void advance_batch(const CopyWalk& walk, CopyWalk::Place& place) {
  --place.batches_left;
  place.batch += kBatchColumns * walk.column_bytes;
  place.column += kBatchColumns;
  if (place.column < walk.columns) return;
  place.column = 0;
  place.batch += kLineBytes - walk.columns * walk.column_bytes;
  if (++place.row < walk.rows) return;
  place.row = 0;
  place.batch += walk.columns * walk.column_bytes - walk.rows * kLineBytes;
}

// 16 granules of four columns become four granules of 16 rows of the panel. Stores are what this
// costs: one by one the granules would take four times as many.
inline void copy_batch(CopyWalk& walk, uint32_t flip) {
  const int64_t column_bytes = walk.column_bytes;
  const int64_t row_bytes = walk.row_bytes;
  const char* from = walk.next.batch;
  char* to = walk.to;
#pragma GCC unroll 4
  for (int64_t byte = 0; byte < kLineBytes; byte += 16, from += 16) {
    // Half of the 4 x 4 granules at a time, each from loads of its own: three registers will do.
    {
      const FourGranules ab = __builtin_shufflevector(
          load_granules(from), load_granules(from + column_bytes), 0, 4, 1, 5);
      const FourGranules cd =
          __builtin_shufflevector(load_granules(from + 2 * column_bytes),
                                  load_granules(from + 3 * column_bytes), 0, 4, 1, 5);
      store_granules(to, __builtin_shufflevector(ab, cd, 0, 1, 4, 5) ^ flip);
      store_granules(to + row_bytes, __builtin_shufflevector(ab, cd, 2, 3, 6, 7) ^ flip);
    }
    {
      const FourGranules ab = __builtin_shufflevector(
          load_granules(from), load_granules(from + column_bytes), 2, 6, 3, 7);
      const FourGranules cd =
          __builtin_shufflevector(load_granules(from + 2 * column_bytes),
                                  load_granules(from + 3 * column_bytes), 2, 6, 3, 7);
      store_granules(to + 2 * row_bytes, __builtin_shufflevector(ab, cd, 0, 1, 4, 5) ^ flip);
      store_granules(to + 3 * row_bytes, __builtin_shufflevector(ab, cd, 2, 3, 6, 7) ^ flip);
    }
    to += 4 * row_bytes;
  }
  const bool last = walk.next.column + kBatchColumns == walk.columns;
  walk.to = last ? to - (walk.columns - kBatchColumns) * 4 : walk.to + kBatchColumns * 4;
  advance_batch(walk, walk.next);
}

// What is due in one of the steps over which the walk is spread. Batches are asked for some time
// before they are copied.
inline void advance_copy(CopyWalk& walk, uint32_t flip) {
  walk.due += walk.per_step;
  for (; walk.due >= kBatchUnit; walk.due -= kBatchUnit) {
    if (walk.ahead.batches_left > 0) {
      for (int64_t i = 0; i < kBatchColumns; ++i)
        __builtin_prefetch(walk.ahead.batch + i * walk.column_bytes, 0, 2);
      advance_batch(walk, walk.ahead);
    }
    if (walk.wait > 0) {
      --walk.wait;
    } else if (walk.next.batches_left > 0) {
      copy_batch(walk, flip);
    }
  }
}

// All that is left.
inline void finish_copy(CopyWalk& walk, uint32_t flip) {
  while (walk.next.batches_left > 0) copy_batch(walk, flip);
}

}  // namespace
}  // namespace cadre::cpu
