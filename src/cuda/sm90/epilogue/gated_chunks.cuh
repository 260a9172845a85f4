// Results of an activation with a gate in the ring of chunks: block 0 of a tile holds gates, block
// 1 their up parts. A warpgroup writes its tile while the other one multiplies, as in
// gmm_chunks.cuh.
#pragma once

#include "cuda/ptx/fences.cuh"
#include "cuda/sm90/epilogue/chunk.cuh"
#include "cuda/sm90/epilogue/chunk_ring.cuh"

namespace cadre::sm90 {

// 64 tokens at a time: gates and up parts of the pre-activation where that is written, then the
// results.
struct GatedChunks {
  const GmmArguments& args;
  int parts;

  __device__ __forceinline__ explicit GatedChunks(const GmmArguments& arguments)
      : args(arguments), parts(args.epilogue.gate.writes_input ? 3 : 1) {}

  __device__ __forceinline__ int count(const Tile& tile) const {
    return (Tile::width(tile.control) + kChunkTokens - 1) / kChunkTokens * parts;
  }
  __device__ __forceinline__ void send(const Tile& tile, int chunk, uint32_t from) const {
    const int part = chunk % parts;
    const RaggedRows rows(tile.row, tile.rows, chunk / parts * kChunkTokens);
    const CUtensorMap* map = part == parts - 1 ? &args.out_map : &args.input_maps[part];
    ptx::tma_store_4d(map, from, tile.feature, rows.bound, rows.end, kRaggedBound);
  }
  // There is no C.
  __device__ __forceinline__ bool reads_c(const Tile& /*tile*/, int /*chunk*/) const {
    return false;
  }
  __device__ __forceinline__ void load_c(const Tile& /*tile*/, int /*chunk*/, uint32_t /*to*/,
                                         uint32_t /*loaded*/) const {}
};

// What a sum becomes on its way through the result's type.
template <typename T>
__device__ __forceinline__ float2 rounded(float x, float y) {
  return unpack<T>(pack<T>(x, y));
}

// The results of 64 tokens, from 8-token group `group` on.
template <typename Transform, typename T, typename Traits>
__device__ __forceinline__ void write_gated_chunk(const EpilogueInputs<Traits>& inputs,
                                                  const GateArguments& gate, const ChunkLane& lane,
                                                  const Accumulators<Traits>& acc, int group,
                                                  uint32_t chunk) {
  const Transform gates(inputs, lane.feature);
  const Transform ups(inputs, kBlockRows + lane.feature);
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      // Read when needed: registers are what there is least of.
      const typename Transform::template Rows<1> rows(inputs, group + j + word / 2, lane.token);
      const int h = word % 2;
      const int at = 4 * (group + j + word / 2) + 2 * h;
      const RowFactor first = rows.at(0, 0);
      const RowFactor second = rows.at(0, 1);
      const float2 g = rounded<T>(gates(acc[0][at], h, first), gates(acc[0][at + 1], h, second));
      const float2 u = rounded<T>(ups(acc[1][at], h, first), ups(acc[1][at + 1], h, second));
      words[word] = pack<T>(activate(gate, g.x, u.x), activate(gate, g.y, u.y));
    }
    ptx::stmatrix_x4_transposed(chunk + lane.matrix + j * 1024, words);
  }
}

// All chunks of a tile, from position `cursor` of the ring on.
template <typename Transform, typename Traits, typename Storage>
__device__ __forceinline__ void fill_gated_chunks(Storage& shared, const GmmArguments& args,
                                                  const Tile& tile,
                                                  const EpilogueInputs<Traits>& inputs,
                                                  Cursor<Traits::kChunks>& cursor,
                                                  const Accumulators<Traits>& acc) {
  using T = typename Traits::Element;
  const ChunkLane lane(ptx::thread_index());
#pragma unroll
  for (int first = 0; first < Traits::kTokens; first += kChunkTokens) {
    if (first >= tile.rows) break;
    if (args.epilogue.gate.writes_input) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const FilledChunk<Traits> input(shared, cursor);
        write_chunk<Transform, false, T, 2>(inputs, lane, acc[part], part * kBlockRows, first / 8,
                                            input.address);
        ptx::fence_async_shared();
        input.publish();
      }
    }
    const FilledChunk<Traits> result(shared, cursor);
    write_gated_chunk<Transform, T, Traits>(inputs, args.epilogue.gate, lane, acc, first / 8,
                                            result.address);
    ptx::fence_async_shared();
    result.publish();
  }
}

template <typename Traits, typename Storage>
__device__ __forceinline__ void finish_gated_tile(Storage& shared, const GmmArguments& args,
                                                  const Tile& tile,
                                                  const EpilogueInputs<Traits>& inputs,
                                                  Cursor<Traits::kChunks>& cursor,
                                                  const Accumulators<Traits>& acc) {
  if (Tile::kind(tile.control) != Tile::kProduct) {
    fill_gated_chunks<Zeros, Traits>(shared, args, tile, inputs, cursor, acc);
  } else if (args.epilogue.has_factors) {
    fill_gated_chunks<RowFactors, Traits>(shared, args, tile, inputs, cursor, acc);
  } else {
    fill_gated_chunks<PlainSums, Traits>(shared, args, tile, inputs, cursor, acc);
  }
}

}  // namespace cadre::sm90
