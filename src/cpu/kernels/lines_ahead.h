// Prefetching beside the products: what the inner loop does of a PrefetchWalk. For kernel files
// only.
#pragma once

#include <cstdint>

#include "cpu/kernels/gemm_kernel.h"

namespace cadre::cpu {
namespace {

// Prefetches are spread over the loop: some lines in every kPrefetchGranules steps, a part of them
// in each kPrefetchSteps, because many at a time hold up the loads of the products.
inline constexpr int64_t kPrefetchGranules = 16;
inline constexpr int64_t kPrefetchSteps = 4;

inline void advance_prefetch(PrefetchWalk& walk, int64_t lines) {
  for (int64_t line = 0; line < lines && walk.rows_left > 0; ++line) {
    __builtin_prefetch(walk.row + walk.column_bytes, 0, 2);
    walk.column_bytes += 64;
    if (walk.column_bytes >= walk.row_bytes) {
      walk.column_bytes = 0;
      walk.row += walk.stride_bytes;
      --walk.rows_left;
    }
  }
}

// The same for a whole call, in registers: a walk costs the inner loop few instructions.
class LinesAhead {
 public:
  explicit LinesAhead(PrefetchWalk& walk)
      : walk_(walk),
        at_(walk.row + walk.column_bytes),
        end_(walk.row + walk.row_bytes),
        rows_left_(walk.rows_left) {}
  void advance(int64_t lines) {
    if (rows_left_ <= 0) return;
    for (; lines > 0; --lines) {
      __builtin_prefetch(at_, 0, 2);
      at_ += 64;
      if (at_ < end_) continue;
      end_ += walk_.stride_bytes;
      at_ = end_ - walk_.row_bytes;
      if (--rows_left_ == 0) return;
    }
  }
  // At the end of the call. (A destructor would bring code for exceptions with it, which kernel
  // files must not share with others.)
  void finish() {
    walk_.row = end_ - walk_.row_bytes;
    walk_.column_bytes = at_ - walk_.row;
    walk_.rows_left = rows_left_;
  }

 private:
  PrefetchWalk& walk_;
  const char* at_;
  const char* end_;  // of the row
  int64_t rows_left_;
};

// In memory again, beside a B that comes from memory itself: that paces the walk, whose bursts
// would cost few rows of f32 and bf16 7 to 13 % (Zen 4).
class PacedLinesAhead {
 public:
  explicit PacedLinesAhead(PrefetchWalk& walk) : walk_(walk) {}
  void advance(int64_t lines) { advance_prefetch(walk_, lines); }
  void finish() {}

 private:
  PrefetchWalk& walk_;
};

}  // namespace
}  // namespace cadre::cpu
