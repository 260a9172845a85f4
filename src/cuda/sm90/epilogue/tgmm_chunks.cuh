// The results of tgmm and grouped_gemm in the ring of chunks, of 64 rows x 128 bytes of out each: a
// warpgroup writes alpha * sum + beta * C of its tile, each warp at its own pace, while the other
// one multiplies.
#pragma once

#include <cstdint>

#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/sm90/epilogue/chunk.cuh"
#include "cuda/sm90/epilogue/chunk_ring.cuh"

namespace cadre::sm90 {

// A chunk is 64 columns of 16 bits or 32 of fp32. A tile's chunks follow each other row by row of
// blocks; those of two warpgroups, which have a block of 64 rows each, take turns.
template <typename Traits>
struct RowChunks {
  static constexpr bool kTogether = Traits::kSharers == 2;
  static_assert(Traits::kBlocks * Traits::kSharers == 2);
  int columns;    // of a chunk
  int per_block;  // chunks side by side

  __device__ __forceinline__ explicit RowChunks(ElementKind output)
      : columns(output == ElementKind::kF32 ? 32 : 64), per_block(Traits::kWidth / columns) {}

  template <typename Tile>
  __device__ __forceinline__ int count(const Tile& /*tile*/) const {
    return 2 * per_block;
  }

  struct Place {
    int row;     // of out
    int column;  // within the tile
  };
  template <typename Tile>
  __device__ __forceinline__ Place place_of(const Tile& tile, int chunk) const {
    if constexpr (kTogether) return {tile.k + chunk % 2 * kBlockRows, chunk / 2 * columns};
    const int block = chunk >= per_block ? 1 : 0;
    return {tile.k + block * kBlockRows, (chunk - block * per_block) * columns};
  }
};

template <typename Traits>
struct TgmmChunks : RowChunks<Traits> {
  const TgmmArguments& args;

  __device__ __forceinline__ explicit TgmmChunks(const TgmmArguments& arguments)
      : RowChunks<Traits>(arguments.output), args(arguments) {}

  __device__ __forceinline__ void send(const TgmmTile& tile, int chunk, uint32_t from) const {
    const auto at = this->place_of(tile, chunk);
    if (at.column < tile.columns && tile.n + at.column < args.whole_columns && at.row < args.k) {
      ptx::tma_store_4d(&args.out_map, from, tile.n + at.column, at.row, tile.out_low,
                        tile.out_high);
    }
  }
  // Not with beta = 0, nor beyond the matrix: a box that lies outside the map in whole touches the
  // map's base, where a list on the device has nothing.
  __device__ __forceinline__ bool reads_c(const TgmmTile& tile, int chunk) const {
    const auto at = this->place_of(tile, chunk);
    return tile.beta != 0.0f && at.column < tile.columns && tile.n + at.column < args.n &&
           at.row < args.k;
  }
  __device__ __forceinline__ void load_c(const TgmmTile& tile, int chunk, uint32_t to,
                                         uint32_t loaded) const {
    const auto at = this->place_of(tile, chunk);
    ptx::mbarrier_arrive_expect(loaded, kChunkBytes);
    ptx::tma_load_4d(to, &args.c_map, loaded, ptx::kEvictNormal, tile.n + at.column, at.row,
                     tile.c_low, tile.c_high);
  }
};

// grouped_gemm: every group has maps of its own, which end where its matrices do.
template <typename Traits>
struct GroupedChunks : RowChunks<Traits> {
  const GroupedArguments& args;

  __device__ __forceinline__ explicit GroupedChunks(const GroupedArguments& arguments)
      : RowChunks<Traits>(arguments.output), args(arguments) {}

  // Whether anything of the chunk lies in the matrix.
  template <typename Place>
  __device__ __forceinline__ static bool inside(const GroupedTile& tile, const Place& at) {
    return at.column < tile.columns && tile.n + at.column < tile.end_n && at.row < tile.end_k;
  }
  __device__ __forceinline__ void send(const GroupedTile& tile, int chunk, uint32_t from) const {
    const auto at = this->place_of(tile, chunk);
    if (!inside(tile, at)) return;
    const CUtensorMap* map = &args.maps[tile.group].out;
    if (chunk == 0) ptx::fence_tensor_map_acquire(map);  // a tile's first one lies inside
    ptx::tma_store_2d(map, from, tile.n + at.column, at.row);
  }
  __device__ __forceinline__ bool reads_c(const GroupedTile& tile, int chunk) const {
    return tile.beta != 0.0f && inside(tile, this->place_of(tile, chunk));
  }
  __device__ __forceinline__ void load_c(const GroupedTile& tile, int chunk, uint32_t to,
                                         uint32_t loaded) const {
    const auto at = this->place_of(tile, chunk);
    const CUtensorMap* map = &args.maps[tile.group].c;
    if (chunk == 0) ptx::fence_tensor_map_acquire(map);
    ptx::mbarrier_arrive_expect(loaded, kChunkBytes);
    ptx::tma_load_2d(to, map, loaded, ptx::kEvictNormal, tile.n + at.column, at.row);
  }
};

// Where a thread's results lie in a chunk, worked out once for all of a tile's. 16-byte column c of
// row r lies at column c ^ (r % 8), as the 128-byte swizzle wants it: column numbers are XORed into
// these.
struct RowLane {
  // stmatrix: lane l points at row l % 8 (+ 8 for odd matrices) and column l / 16 of a pair.
  uint32_t matrix;
  // 16-bit pairs, one by one: block j of 8 columns is `^ (j * 16)`; the row 8 below is `+ 1024`.
  uint32_t pair;
  // fp32 pairs: block t of 8 columns is `^ (t * 32)`. Lanes of odd rows take blocks in the order
  // t ^ 2, so that the 16 lanes of each half of a warp touch all 32 banks once.
  uint32_t floats;
  bool odd;

  __device__ __forceinline__ explicit RowLane(const ConsumerPlace& place) {
    const int lane = place.lane();
    const int first = place.warp() * 16;
    const int row = lane / 4;
    matrix = (first + lane / 8 % 2 * 8 + lane % 8) * kRowBytes + ((lane / 16) ^ (lane % 8)) * 16;
    pair = (first + row) * kRowBytes + row * 16 + lane % 4 * 4;
    floats = (first + row) * kRowBytes + ((lane % 4 / 2) ^ row ^ (row % 2 * 4)) * 16 + lane % 2 * 8;
    odd = row % 2 != 0;
  }

  // Pair p of a thread's 16 values in a chunk of fp32, in that order.
  __device__ __forceinline__ float2 float_pair(const float* acc, int p) const {
    const int even_at = 2 * p;
    const int odd_at = 2 * (p ^ 4);
    return {odd ? acc[odd_at] : acc[even_at], odd ? acc[odd_at + 1] : acc[even_at + 1]};
  }
};

// Writes a thread's share of a chunk: acc[4j + i] of blocks j of 8 columns. 64 columns of 16 bits,
// or 32 of fp32.
template <typename Out, typename Transform>
__device__ __forceinline__ void write_rows(uint32_t chunk, const RowLane& lane, const float* acc,
                                           Transform transform) {
  if constexpr (sizeof(Out) == 4) {
    const uint32_t address = chunk + lane.floats;
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const float2 value = lane.float_pair(acc, p);
      ptx::store_shared_float2((address ^ (p / 2 * 32)) + p % 2 * 1024, transform(value.x),
                               transform(value.y));
    }
  } else {
    const uint32_t address = chunk + lane.matrix;
#pragma unroll
    for (int j = 0; j < 8; j += 2) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        packed[i] = pack<Out>(transform(acc[4 * j + 2 * i]), transform(acc[4 * j + 2 * i + 1]));
      }
      ptx::stmatrix_x4(address ^ (j * 16), packed);
    }
  }
}

// The same over C, which lies in the chunk and is read before anything is written.
template <typename Out, typename Transform>
__device__ __forceinline__ void combine_rows(uint32_t chunk, const RowLane& lane, const float* acc,
                                             Transform transform, float beta) {
  if constexpr (sizeof(Out) == 4) {
    const uint32_t address = chunk + lane.floats;
    float2 c[8];
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      c[p] = ptx::load_shared_float2((address ^ (p / 2 * 32)) + p % 2 * 1024);
    }
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const float2 value = lane.float_pair(acc, p);
      ptx::store_shared_float2((address ^ (p / 2 * 32)) + p % 2 * 1024,
                               add_c(beta, c[p].x, transform(value.x)),
                               add_c(beta, c[p].y, transform(value.y)));
    }
  } else {
    const uint32_t address = chunk + lane.pair;
    uint32_t words[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      words[i] = ptx::load_shared_word((address ^ (i / 2 * 16)) + i % 2 * 1024);
    }
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const float2 c = unpack<Out>(words[i]);
      ptx::store_shared_word((address ^ (i / 2 * 16)) + i % 2 * 1024,
                             pack<Out>(add_c(beta, c.x, transform(acc[2 * i])),
                                       add_c(beta, c.y, transform(acc[2 * i + 1]))));
    }
  }
}

// The columns of out after the last whole 16 bytes, which the copy engine can't write without what
// follows them: a warp stores them from its 16 rows of the chunk. `column` and `row` are the
// chunk's first ones in out.
template <typename Out>
__device__ __forceinline__ void store_rest(const TgmmArguments& args, const ConsumerPlace& place,
                                           const TgmmTile& tile, uint32_t chunk, int column,
                                           int row) {
  using Bits = std::conditional_t<sizeof(Out) == 4, float, uint16_t>;
  constexpr int kVector = 16 / sizeof(Out);
  const int rest = args.whole_columns - column;  // the first of them within the chunk
  const int in_chunk = place.warp() * 16 + place.lane();
  if (rest < 0 || rest >= kRowBytes / static_cast<int>(sizeof(Out))) return;
  if (place.lane() >= 16 || row + in_chunk >= args.k) return;
  const uint64_t address = args.out.map_base + (static_cast<uint64_t>(tile.out_low) << 4) +
                           (static_cast<uint64_t>(tile.out_high) << (4 + kTgmmLowBits));
  store_rest_of_row(chunk, in_chunk, rest / kVector, args.n - args.whole_columns,
                    reinterpret_cast<Bits*>(address) + (row + in_chunk) * args.out_row_stride +
                        args.whole_columns);
}

// All chunks of a tile, from position `cursor` of the ring on.
template <typename Out, typename Transform, typename Traits, typename Storage, typename Arguments,
          typename Tile>
__device__ __forceinline__ void fill_row_chunks(Storage& shared, const Arguments& args,
                                                const ConsumerPlace& place, const Tile& tile,
                                                Transform transform,
                                                Cursor<Traits::kChunks>& cursor,
                                                const Accumulators<Traits>& acc) {
  constexpr int kColumns = kRowBytes / sizeof(Out);
  constexpr int kPerBlock = Traits::kWidth / kColumns;
  const RowLane lane(place);
#pragma unroll
  for (int i = 0; i < Traits::kBlocks * kPerBlock; ++i) {
    const int column = i % kPerBlock * kColumns;
    const float* values = &acc[i / kPerBlock][column / 2];
    if constexpr (RowChunks<Traits>::kTogether) cursor.advance_by(place.warpgroup);
    const FilledChunk<Traits> chunk(shared, cursor);
    if constexpr (RowChunks<Traits>::kTogether) cursor.advance_by(1 - place.warpgroup);
    if (Traits::kReadsC && tile.beta != 0.0f) {
      combine_rows<Out>(chunk.address, lane, values, transform, tile.beta);
    } else {
      write_rows<Out>(chunk.address, lane, values, transform);
    }
    ptx::fence_async_shared();
    if constexpr (std::is_same_v<Arguments, TgmmArguments>) {  // grouped_gemm's have no rest
      if (args.whole_columns != args.n && column < tile.columns) {
        __syncwarp();
        store_rest<Out>(args, place, tile, chunk.address, tile.n + column,
                        tile.k + i / kPerBlock * kBlockRows);
      }
    }
    chunk.publish();
  }
}

// The transform of a tile, and its type.
template <typename Traits, typename Storage, typename Arguments, typename Tile>
__device__ __forceinline__ void finish_row_tile(Storage& shared, const Arguments& args,
                                                const ConsumerPlace& place, const Tile& tile,
                                                Cursor<Traits::kChunks>& cursor,
                                                const Accumulators<Traits>& acc) {
  const auto fill = [&](auto transform) {
    using Transform = decltype(transform);
    if (args.output == ElementKind::kF32) {
      fill_row_chunks<float, Transform, Traits>(shared, args, place, tile, transform, cursor, acc);
    } else if (args.output == ElementKind::kBf16) {
      fill_row_chunks<__nv_bfloat16, Transform, Traits>(shared, args, place, tile, transform,
                                                        cursor, acc);
    } else {
      fill_row_chunks<__half, Transform, Traits>(shared, args, place, tile, transform, cursor, acc);
    }
  };
  if (tile.rows == 0) {
    fill(Zeros{});
  } else if (tile.alpha == 1.0f) {
    fill(PlainSums{});
  } else {
    fill(ScaledSums{tile.alpha});
  }
}

}  // namespace cadre::sm90
