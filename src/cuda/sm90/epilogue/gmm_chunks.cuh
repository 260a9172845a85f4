// gmm's results in the ring of chunks: a warpgroup writes its tile, each warp at its own pace,
// while the other one multiplies. A warp has 16 features of each block: what it writes and the C
// that it reads are its own.
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

// All chunks of a tile, from position `cursor` of the ring on. kWide: fp32.
template <typename Transform, bool kC, bool kWide, typename Traits, typename Storage>
__device__ __forceinline__ void fill_gmm_chunks(Storage& shared, const GmmArguments& args,
                                                const Tile& tile,
                                                const EpilogueInputs<Traits>& inputs,
                                                Cursor<Traits::kChunks>& cursor,
                                                const Accumulators<Traits>& acc) {
  using T = typename Traits::Element;
  constexpr int kTokens = kWide ? kWideChunkTokens : kChunkTokens;
  // Both blocks together, so that the rows' factors are read once.
  constexpr bool kTwo = std::is_same_v<Transform, RowFactors> && !kC && !kWide;
  const ConsumerPlace place = {0};
  const ChunkLane lane(ptx::thread_index());
  const auto publish = [&](const FilledChunk<Traits>& filled, int chunk) {
    if (args.whole_columns != args.n) {
      __syncwarp();
      store_rest<kWide>(args, place, output_place(args, tile), filled.address,
                        tile.feature + chunk % 2 * kBlockRows, chunk / 2 * kTokens);
    }
    filled.publish();
  };
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kTokens * 2; chunk += kTwo ? 2 : 1) {
    const int group = chunk / 2 * kTokens / 8;
    if (chunk / 2 * kTokens >= tile.rows) break;
    const FilledChunk<Traits> one(shared, cursor);
    if constexpr (kTwo) {
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
      publish(one, chunk);
      publish(other, chunk + 1);
      continue;
    } else if constexpr (kWide) {
      write_wide_chunk<Transform, kC>(inputs, lane, acc[chunk % 2], chunk % 2 * kBlockRows, group,
                                      one.address);
    } else {
      write_chunk<Transform, kC, T, 4>(inputs, lane, acc[chunk % 2], chunk % 2 * kBlockRows, group,
                                       one.address);
    }
    ptx::fence_async_shared();
    publish(one, chunk);
  }
}

// The transform of a tile, and its type.
template <typename Traits, typename Storage>
__device__ __forceinline__ void finish_gmm_tile(Storage& shared, const GmmArguments& args,
                                                const Tile& tile,
                                                const EpilogueInputs<Traits>& inputs,
                                                Cursor<Traits::kChunks>& cursor,
                                                const Accumulators<Traits>& acc) {
  const auto fill = [&]<typename Transform, bool kC>() {
    if (args.epilogue.out == ElementKind::kF32) {
      fill_gmm_chunks<Transform, kC, true, Traits>(shared, args, tile, inputs, cursor, acc);
    } else {
      fill_gmm_chunks<Transform, kC, false, Traits>(shared, args, tile, inputs, cursor, acc);
    }
  };
  const EpilogueArguments& epilogue = args.epilogue;
  if (Tile::kind(tile.control) != Tile::kProduct) {
    fill.template operator()<Zeros, false>();
  } else if (!epilogue.has_factors) {
    fill.template operator()<PlainSums, false>();
  } else if (Traits::kReadsC && Tile::reads_c(tile.control)) {
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
