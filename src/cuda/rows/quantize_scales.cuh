// The scales of a tile: made of its amaxes, or read where a pass before has made them, and 1 /
// scale for the threads that multiply with it.
#pragma once

#include "cuda/rows/quantize_values.cuh"

namespace cadre::rows {

template <typename T>
struct TileMemory {
  TransposedCodes codes;
  uint32_t amaxes[kRowBlocks][kTileColumns / TileValues<T>::kOfWord];
  float4 inverses[4][2][kLanes];  ///< by block of 32 rows (mx) or once, and a lane's two fours
  uint32_t amax_of_tile;
};

/// Whether the tile makes the scales, and hasn't got them from the pass before.
__device__ __forceinline__ bool makes_scales(const QuantizeArguments& args) {
  return args.mode == ScaleMode::kMx || args.mode == ScaleMode::kBlock128;
}

/// The largest of the whole tile, by all threads.
template <typename T>
__device__ __forceinline__ float largest_of_tile(TileMemory<T>& memory,
                                                 const ColumnAmaxes<T>& amaxes) {
  if (threadIdx.x == 0) memory.amax_of_tile = 0;
  __syncthreads();
  const float largest = largest_of_lanes(amaxes.largest());
  if (threadIdx.x % 32 == 0) atomicMax(&memory.amax_of_tile, std::bit_cast<uint32_t>(largest));
  __syncthreads();
  return std::bit_cast<float>(memory.amax_of_tile);
}

/// 1 / scale of a row from the lane's columns on, made of `amax` or read. One of the lanes that
/// share it writes it.
__device__ __forceinline__ float row_inverse(const QuantizeArguments& args, const Band& band,
                                             int64_t col, int row, float amax, bool writes) {
  const Copy& copy = args.rows;
  if (row >= band.rows || col >= args.width) return 1;
  const int64_t at = copy.scales.index(band, row, col);
  if (!makes_scales(args)) return 1 / copy.scales.at(at);
  const float scale = band.group < 0 ? copy.make.of_tail() : copy.make.of(amax);
  if (writes) copy.scales.set(at, scale);
  return 1 / scale;
}

/// Of the thread's eight rows.
template <typename T>
__device__ __forceinline__ TwoRows row_inverses(const QuantizeArguments& args, const Band& band,
                                                const TilePlace& place, int64_t first_col,
                                                float amax_of_tile, const TileValues<T>& values,
                                                bool finite) {
  const bool mx = args.mode == ScaleMode::kMx;
  TwoRows amaxes{amax_of_tile, amax_of_tile};
  if (makes_scales(args) && !args.square) amaxes = largest_of_rows(values, finite, !mx);
  const int row = place.row(row_of_lane());
  if (mx) {
    // The first column of the block that four lanes share; each of them has two rows.
    const int64_t col = first_col + place.col() / 32 * 32;
    return {row_inverse(args, band, col, row, amaxes.of[0], true),
            row_inverse(args, band, col, row + 4, amaxes.of[1], true)};
  }
  // Sixteen lanes share it: each makes one.
  const uint32_t lane = threadIdx.x % 32;
  const bool high = (lane & 4) != 0;
  const bool writes = args.square ? threadIdx.x == 0 : (lane & 8) == 0;
  const float mine = row_inverse(args, band, first_col, row + (high ? 4 : 0),
                                 high ? amaxes.of[1] : amaxes.of[0], writes);
  const float other = __shfl_xor_sync(0xffffffffu, mine, 4);
  return {high ? other : mine, high ? mine : other};
}

/// The amax of a column over some blocks of rows.
template <typename T>
__device__ __forceinline__ float amax_of_column(const TileMemory<T>& memory, int first, int count,
                                                int col) {
  using Values = TileValues<T>;
  uint32_t amax = 0;
  for (int i = 0; i < count; ++i) {
    amax = Magnitudes<T>::larger(amax, memory.amaxes[first + i][col / Values::kOfWord]);
  }
  const float low = Values::number(amax, 0);
  return col % Values::kOfWord == 0 ? low : Values::number(amax, 1);
}

/// The scales of the columns, and their inverses in shared memory.
template <typename T>
__device__ __forceinline__ void make_column_inverses(const QuantizeArguments& args,
                                                     const Band& band, int64_t first_col,
                                                     float amax_of_tile, TileMemory<T>& memory) {
  const Copy& copy = args.columns;
  const int block = args.mode == ScaleMode::kMx ? 32 : static_cast<int>(kBandRows);
  for (int i = static_cast<int>(threadIdx.x); i < kBandRows / block * kTileColumns;
       i += kTileThreads) {
    const int q = i / kTileColumns;  // a block of rows
    const int col = i % kTileColumns;
    if (q * block >= band.rows || first_col + col >= args.width) continue;
    const int64_t at = copy.scales.index(band, q * block, first_col + col);
    float scale = 0;
    if (makes_scales(args)) {
      const int blocks = block / kRows;
      scale = copy.make.of(args.square ? amax_of_tile
                                       : amax_of_column(memory, q * blocks, blocks, col));
      if (!args.square || i == 0) copy.scales.set(at, scale);
    } else {
      scale = copy.scales.at(at);
    }
    auto* const of_lane = reinterpret_cast<float*>(&memory.inverses[q][col / 4 % 2][col / 8]);
    of_lane[col % 4] = 1 / scale;
  }
}

/// The pass before: every amax that a tile has a part of.
template <typename T>
__device__ __forceinline__ void raise_amaxes(const QuantizeArguments& args, const Band& band,
                                             const TilePlace& place, int64_t first_col,
                                             const TileValues<T>& values,
                                             const ColumnAmaxes<T>& amaxes, TileMemory<T>& memory) {
  if (args.mode == ScaleMode::kTensor) {
    const float largest = largest_of_tile(memory, amaxes);
    if (threadIdx.x == 0) {
      for (const Copy* copy : {&args.rows, &args.columns}) {
        if (copy->given()) copy->scales.raise(copy->scales.index(band, 0, 0), largest);
      }
    }
    return;
  }
  if (args.rows.given()) {
    const TwoRows of_rows = largest_of_rows(values, amaxes.finite, true);
    const bool high = (threadIdx.x & 4u) != 0;
    const int row = place.row(row_of_lane()) + (high ? 4 : 0);
    if (place.col_block < kRows && row < band.rows) {
      args.rows.scales.raise(args.rows.scales.index(band, row, 0),
                             high ? of_rows.of[1] : of_rows.of[0]);
    }
  }
  if (!args.columns.given()) return;
  __syncthreads();  // the amaxes of all blocks of rows are there
  const int col = static_cast<int>(threadIdx.x);
  if (col >= kTileColumns || first_col + col >= args.width) return;
  args.columns.scales.raise(args.columns.scales.index(band, 0, first_col + col),
                            amax_of_column(memory, 0, kRowBlocks, col));
}

}  // namespace cadre::rows
