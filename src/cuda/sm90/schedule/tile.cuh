// A tile: one unit of work as the scheduler hands it to the other roles.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/sm90/shapes.h"

namespace cadre::sm90 {

struct alignas(16) Tile {
  enum Kind : uint32_t { kProduct, kZero, kEnd };

  uint32_t control;  // width | kind << 16 | reads_c << 24: what a consumer must know first, in one
                     // read
  int group;         // local group: index into rhs, alpha, beta and bias
  int row;           // first row of lhs and out
  int group_row;     // the same within the group
  int rows;          // valid rows: more than width - kTokenStep, at most width
  int feature;       // first column of out
  int unused[2];

  // Tokens computed, a multiple of kTokenStep.
  static __device__ __forceinline__ int width(uint32_t control) { return control & 0xffff; }
  static __device__ __forceinline__ Kind kind(uint32_t control) {
    return static_cast<Kind>(control >> 16 & 0xff);
  }
  // beta of the group is not 0.
  static __device__ __forceinline__ bool reads_c(uint32_t control) { return control >> 24 != 0; }

  __device__ __forceinline__ bool is_end() const { return kind(control) == kEnd; }
  __device__ __forceinline__ void set_end() { control = kEnd << 16; }

  // All lanes get what lane 0 has.
  __device__ __forceinline__ void share_in_warp() {
    control = ptx::uniform(static_cast<int>(control));
    group = ptx::uniform(group);
    row = ptx::uniform(row);
    group_row = ptx::uniform(group_row);
    rows = ptx::uniform(rows);
    feature = ptx::uniform(feature);
  }
};
static_assert(sizeof(Tile) == 32);

// tgmm's: everything that depends on the group.
struct alignas(16) TgmmTile {
  int row;                // first row of lhs and rhs; negative: no more tiles
  int rows;               // 0 for an empty group
  int k;                  // first column of lhs, row of out
  int n;                  // first column of rhs and out
  int out_low, out_high;  // coordinates of the group's matrix in the map of out
  int c_low, c_high;
  float alpha;
  float beta;
  int columns;  // of rhs and out, a multiple of 64: at most kWidth
  int unused;

  __device__ __forceinline__ bool is_end() const { return row < 0; }
  __device__ __forceinline__ void set_end() { row = -1; }

  // 64-wide atoms of the operands: at the edge of out (k rows) a tile is narrower.
  __device__ __forceinline__ int atoms_a(int k_end) const { return min(2, (k_end - k + 63) / 64); }
  __device__ __forceinline__ int atoms_b() const { return columns / 64; }

  // All lanes get what lane 0 has, but for C's place, which no consumer reads.
  __device__ __forceinline__ void share_in_warp() {
    row = ptx::uniform(row);
    rows = ptx::uniform(rows);
    k = ptx::uniform(k);
    n = ptx::uniform(n);
    out_low = ptx::uniform(out_low);
    out_high = ptx::uniform(out_high);
    alpha = __int_as_float(ptx::uniform(__float_as_int(alpha)));
    beta = __int_as_float(ptx::uniform(__float_as_int(beta)));
    columns = ptx::uniform(columns);
  }
};
static_assert(sizeof(TgmmTile) == 48);

// grouped_gemm's: everything that depends on the group, whose matrices have extents of their own.
struct alignas(16) GroupedTile {
  int group;    // negative: no more tiles
  int rows;     // what is summed over: the group's k
  int k;        // first row of out
  int n;        // first column of out
  int end_k;    // rows of out
  int end_n;    // columns of out
  int columns;  // of the tile, a multiple of 64: at most kWidth
  float alpha;
  float beta;
  int line;  // the group's first line of scales in column-wise copies, its first row in gmm
  int unused[2];

  __device__ __forceinline__ bool is_end() const { return group < 0; }
  __device__ __forceinline__ void set_end() { group = -1; }

  __device__ __forceinline__ int atoms_a() const { return min(2, (end_k - k + 63) / 64); }
  __device__ __forceinline__ int atoms_b() const { return columns / 64; }

  // All lanes get what lane 0 has.
  __device__ __forceinline__ void share_in_warp() {
    group = ptx::uniform(group);
    rows = ptx::uniform(rows);
    k = ptx::uniform(k);
    n = ptx::uniform(n);
    end_k = ptx::uniform(end_k);
    end_n = ptx::uniform(end_n);
    columns = ptx::uniform(columns);
    alpha = __int_as_float(ptx::uniform(__float_as_int(alpha)));
    beta = __int_as_float(ptx::uniform(__float_as_int(beta)));
    line = ptx::uniform(line);
  }
};
static_assert(sizeof(GroupedTile) == 48);

}  // namespace cadre::sm90
