// What the Hopper tgmm kernel is told: one plain struct that travels as a kernel parameter, so that
// a captured graph stays right. Shapes in elements; every pointer is a device pointer.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/group_inputs.h"

namespace cadre::sm90 {

enum class TgmmOutput : int { kBf16, kF16, kF32 };

// A group as the plan (tgmm_plan.cuh) leaves it for the product: rows clamped to the operands.
struct TgmmGroup {
  int row;    // first row of lhs and rhs
  int rows;   // 0 for an empty group
  int group;  // local index: of out, C, alpha and beta
  int unused;
};

// The groups, longest first.
struct TgmmPlan {
  unsigned unaligned;  // a matrix of a list that the copy engine can't take: nothing is done
  unsigned unused[3];
  TgmmGroup groups[1];  // num_local of them
};

// Where the [k, n] matrices of out or C lie: pointers[group], or base + group * stride. The tensor
// map that goes with it spans the address space from `map_base` on (tgmm_launch.cc), so that one
// map serves every matrix, however they were allocated.
struct TgmmMatrices {
  const uint64_t* pointers = nullptr;
  uint64_t base = 0;
  int64_t group_stride_bytes = 0;
  uint64_t map_base = 0;
};

// An address in such a map: 16-byte steps in the third coordinate, what is left in the fourth.
inline constexpr int kTgmmLowBits = 28;

// One value for all groups, or `data[group * stride]`.
struct TgmmScalars {
  float value = 0;
  bool is_f64 = false;
  const void* data = nullptr;
  int64_t stride = 1;
};

struct TgmmArguments {
  CUtensorMap lhs_map;  // ragged 4-D, boxes of 64 columns x 64 rows
  CUtensorMap rhs_map;
  CUtensorMap out_map;  // boxes of 128 bytes x 64 rows
  CUtensorMap c_map;    // kWithC alone; C has out's type and is read where beta is not 0
  TgmmMatrices out;
  TgmmMatrices c;
  cuda::GroupInputs groups;
  int64_t* offsets = nullptr;        // room for num_local + 1
  TgmmPlan* plan = nullptr;          // room for num_local groups
  uint32_t* tile_counter = nullptr;  // 0 before and after; null: tile t goes to CTA t mod grid
  int num_local = 0;
  TgmmScalars alpha;
  TgmmScalars beta;
  int k = 0;
  int n = 0;
  int whole_columns = 0;  // later ones are no whole 16 bytes of out and are stored by address
  int64_t out_row_stride = 0;
  TgmmOutput output = TgmmOutput::kBf16;
  int band = 1;  // height of the bands of tiles
};

}  // namespace cadre::sm90
