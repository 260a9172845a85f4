// gmm's results in the ring of chunks: a warpgroup writes its tile, or its block of a shared one,
// each warp at its own pace. A warp has 16 features of each block: what it writes and the C that it
// reads are its own.
#pragma once

#include "cuda/ptx/fences.cuh"
#include "cuda/sm90/epilogue/chunk.cuh"
#include "cuda/sm90/epilogue/chunk_ring.cuh"

namespace cadre::sm90 {

// Chunk c holds block c % 2 of 64 features and, from c / 2 * tokens on, 64 tokens of 16 bits or 32
// of fp32.
struct GmmChunks {
  const GmmArguments& args;
  int tokens;  // of a chunk

  __device__ __forceinline__ explicit GmmChunks(const GmmArguments& arguments)
      : args(arguments),
        tokens(args.epilogue.out == ElementKind::kF32 ? kWideChunkTokens : kChunkTokens) {}

  __device__ __forceinline__ int count(const Tile& tile) const {
    return (Tile::width(tile.control) + tokens - 1) / tokens * 2;
  }
  __device__ __forceinline__ void send(const Tile& tile, int chunk, uint32_t from) const {
    send_chunk(args, output_place(args, tile), from, tile.feature + chunk % 2 * kBlockRows,
               chunk / 2 * tokens);
  }
  // Not for a group with beta = 0.
  __device__ __forceinline__ bool reads_c(const Tile& tile, int /*chunk*/) const {
    return Tile::reads_c(tile.control);
  }
  __device__ __forceinline__ void load_c(const Tile& tile, int chunk, uint32_t to,
                                         uint32_t loaded) const {
    load_c_chunk(args, tile, to, loaded, tile.feature + chunk % 2 * kBlockRows, chunk / 2 * tokens,
                 ptx::kEvictNormal);
  }
};

// All chunks of a tile, from position `cursor` of the ring on; of a shared tile those of the
// warpgroup's block. T: their 16-bit type. kWide: they are fp32.
template <typename Transform, bool kC, bool kWide, typename T, typename Traits, typename Storage>
__device__ __forceinline__ void fill_gmm_chunks(Storage& shared, const GmmArguments& args,
                                                const ConsumerPlace& place, const Tile& tile,
                                                const EpilogueInputs<Traits>& inputs,
                                                Cursor<Traits::kChunks>& cursor,
                                                const Accumulators<Traits>& acc) {
  constexpr int kTokens = kWide ? kWideChunkTokens : kChunkTokens;
  constexpr int kBlocks = Traits::kBlocks;
  static_assert(kBlocks * Traits::kSharers == 2);
  // Both blocks together, so that the rows' factors are read once.
  constexpr bool kTwo = Transform::kReadsRows && !kC && !kWide && kBlocks == 2;
  const ChunkLane lane(ptx::thread_index());
  const auto publish = [&](const FilledChunk<Traits>& filled, int block, int first_token) {
    if (args.whole_columns != args.n) {
      __syncwarp();
      store_rest<kWide>(args, place, output_place(args, tile), filled.address,
                        tile.feature + block * kBlockRows, first_token);
    }
    filled.publish();
  };
#pragma unroll
  for (int first_token = 0; first_token < Traits::kTokens; first_token += kTokens) {
    const int group = first_token / 8;
    if (first_token >= tile.rows) break;
    if constexpr (kTwo) {
      const FilledChunk<Traits> one(shared, cursor);
      const FilledChunk<Traits> other(shared, cursor);
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const typename Transform::template Rows<4> rows(inputs, group + j, lane.token);
#pragma unroll
        for (int block = 0; block < 2; ++block) {
          const Transform transform(inputs, block * kBlockRows + lane.feature);
          write_tokens<kC, T, 4>(
              inputs, transform, rows, acc[block], group + j,
              (block == 0 ? one.address : other.address) + lane.matrix + j * 1024);
        }
      }
      ptx::fence_async_shared();
      publish(one, 0, first_token);
      publish(other, 1, first_token);
    } else {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        const int block = kBlocks == 2 ? i : place.warpgroup;
        if constexpr (kBlocks == 1) cursor.advance_by(block);  // past the other warpgroup's
        const FilledChunk<Traits> one(shared, cursor);
        if constexpr (kWide) {
          write_wide_chunk<Transform, kC>(inputs, lane, acc[i], block * kBlockRows, group,
                                          one.address);
        } else {
          write_chunk<Transform, kC, T, 4>(inputs, lane, acc[i], block * kBlockRows, group,
                                           one.address);
        }
        if constexpr (kBlocks == 1) cursor.advance_by(1 - block);
        ptx::fence_async_shared();
        publish(one, block, first_token);
      }
    }
  }
}

// The transform of a tile, and its type.
template <typename Traits, typename Storage>
__device__ __forceinline__ void finish_gmm_tile(Storage& shared, const GmmArguments& args,
                                                const ConsumerPlace& place, const Tile& tile,
                                                const EpilogueInputs<Traits>& inputs,
                                                Cursor<Traits::kChunks>& cursor,
                                                const Accumulators<Traits>& acc) {
  const auto fill = [&]<typename Transform, bool kC>() {
    const auto fill_as = [&]<bool kWide, typename T>() {
      fill_gmm_chunks<Transform, kC, kWide, T, Traits>(shared, args, place, tile, inputs, cursor,
                                                       acc);
    };
    if (args.epilogue.out == ElementKind::kF32) {
      fill_as.template operator()<true, __half>();
    } else if constexpr (!Traits::kFp8) {
      fill_as.template operator()<false, typename Traits::ElementA>();
    } else if (args.epilogue.out == ElementKind::kBf16) {
      fill_as.template operator()<false, __nv_bfloat16>();
    } else {
      fill_as.template operator()<false, __half>();
    }
  };
  const EpilogueArguments& epilogue = args.epilogue;
  const bool reads_c = Traits::kReadsC && Tile::reads_c(tile.control);
  if (Tile::kind(tile.control) != Tile::kProduct) {
    fill.template operator()<Zeros, false>();
  } else if constexpr (Traits::kScaledResults) {
    if (reads_c) {
      if constexpr (Traits::kReadsC) fill.template operator()<ScaledRows, true>();
    } else {
      fill.template operator()<ScaledRows, false>();
    }
  } else if (!epilogue.has_factors) {
    fill.template operator()<PlainSums, false>();
  } else if (reads_c) {
    if (epilogue.has_row_factors) {
      fill.template operator()<RowFactors, true>();
    } else {
      fill.template operator()<GroupFactors, true>();
    }
  } else if (Traits::kReadsC || epilogue.has_row_factors) {
    fill.template operator()<RowFactors, false>();
  } else {
    fill.template operator()<GroupFactors, false>();
  }
}

}  // namespace cadre::sm90
