// Bands of at most 128 rows, each of one group: the rows of a tile of quantize and dequantize.
// Where groups have sizes, a kernel writes a list of all bands, so that a tile finds its rows with
// one load.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "plan/problem.h"

namespace cadre::rows {

inline constexpr int64_t kBandRows = 128;

struct Band {
  int64_t row = 0;     ///< the first, of all rows; of weights, of its group
  int64_t column = 0;  ///< where it begins in a column-wise copy
  int64_t line = 0;    ///< bands of groups before it
  int32_t rows = 0;    ///< 0: no band
  int32_t group = 0;   ///< -1: behind the last group
};

/// How a kernel finds its bands.
struct Bands {
  const Band* list = nullptr;  ///< of all groups; null: every group has `group_rows` rows
  int64_t groups = 1;          ///< without a list
  int64_t count = 0;  ///< at most, of a group or of the list, whose end has bands of no rows
  int64_t group_rows = 0;
  bool weights = false;
  int64_t m = 0;
  const int64_t* tail_begin = nullptr;  ///< null: m

  int64_t first_group = 0;  ///< of the launch
  int64_t first_index = 0;

  __device__ __forceinline__ int64_t first_of_tail() const {
    return tail_begin == nullptr ? m : *tail_begin;
  }
};

/// What column-wise copies hold. Groups in device memory may need more: none of their bytes is
/// touched then.
struct ColumnRoom {
  int64_t capacity = INT64_MAX;  ///< columns
  int64_t lines = INT64_MAX;     ///< of scales
  int64_t line_rows = kBandRows;
};

/// Bytes of scratch that make_bands uses.
size_t bands_bytes(const plan::Problem& problem);

/// `x` is the operand that decides between rows and weights. May launch kernels that read sizes. A
/// group beyond `room` is a fault, and its bands count as behind the last group.
Status make_bands(const cuda::Launch& launch, const plan::Problem& problem, const TensorView& x,
                  const GroupSizes& sizes, const ColumnRoom& room, Bands* bands);

}  // namespace cadre::rows
