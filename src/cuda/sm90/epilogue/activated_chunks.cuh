// Results of an activation in the ring of chunks. A warpgroup writes its tile while the other one
// multiplies, as in gmm_chunks.cuh. Where the sums of one result are: see ActivatedShape.
#pragma once

#include "cuda/ptx/fences.cuh"
#include "cuda/sm90/epilogue/chunk.cuh"
#include "cuda/sm90/epilogue/chunk_ring.cuh"

namespace cadre::sm90 {

// 64 tokens at a time: the pre-activation of both blocks where that is written, then the results.
template <ActivationForm kForm>
struct ActivatedChunks {
  static constexpr int kResults = 2 / columns_of(kForm);
  const GmmArguments& args;
  int inputs;

  __device__ __forceinline__ explicit ActivatedChunks(const GmmArguments& arguments)
      : args(arguments), inputs(args.epilogue.activation.writes_input ? 2 : 0) {}

  __device__ __forceinline__ int count(const Tile& tile) const {
    return (Tile::width(tile.control) + kChunkTokens - 1) / kChunkTokens * (inputs + kResults);
  }
  __device__ __forceinline__ void send(const Tile& tile, int chunk, uint32_t from) const {
    const int parts = inputs + kResults;
    const int part = chunk % parts;
    const RaggedRows rows(tile.row, tile.rows, chunk / parts * kChunkTokens);
    const CUtensorMap* map = &args.out_map;
    int feature = tile.feature + (part - inputs) * kBlockRows;
    int end = args.n;
    if (part < inputs && kForm == ActivationForm::kHalves) {
      map = &args.input_maps[part];
      feature = tile.feature;
    } else if (part < inputs) {
      map = &args.input_maps[0];
      feature = tile.feature * columns_of(kForm) + part * kBlockRows;
      end = args.n * columns_of(kForm);
    }
    if (feature >= end) return;
    ptx::tma_store_4d(map, from, feature, rows.bound, rows.end, kRaggedBound);
  }
  // There is no C.
  __device__ __forceinline__ bool reads_c(const Tile& /*tile*/, int /*chunk*/) const {
    return false;
  }
  __device__ __forceinline__ void load_c(const Tile& /*tile*/, int /*chunk*/, uint32_t /*to*/,
                                         uint32_t /*loaded*/) const {}
};

// Two neighbouring tokens' sums of one feature (`at` on) on their way through the result's type:
// what a pass of its own would read. `h` as in transforms.cuh.
template <typename T, typename Transform, typename Rows>
__device__ __forceinline__ uint32_t input_pair(const Transform& transform, const Rows& rows,
                                               const float* acc, int at, int h) {
  return pack<T>(transform(acc[at], h, rows.at(0, 0)), transform(acc[at + 1], h, rows.at(0, 1)));
}

template <typename T, typename Function>
__device__ __forceinline__ uint32_t activate_pair(const Function& function, uint32_t gates,
                                                  uint32_t ups) {
  const float2 g = unpack<T>(gates);
  const float2 u = unpack<T>(ups);
  return pack<T>(function(g.x, u.x), function(g.y, u.y));
}

// The results of 64 tokens, from 8-token group `group` on. Factors are read when needed: registers
// are what there is least of. kHalves and kEach: `block` has the gates or all there is.
template <typename Transform, typename T, typename Traits, typename Function>
__device__ __forceinline__ void write_results(const EpilogueInputs<Traits>& inputs,
                                              const Function& function, const ChunkLane& lane,
                                              const Accumulators<Traits>& acc, int block, int group,
                                              uint32_t chunk) {
  constexpr bool kHalves = Traits::kActivation == ActivationForm::kHalves;
  const Transform gates(inputs, block * kBlockRows + lane.feature);
  const Transform ups(inputs, (kHalves ? kBlockRows : 0) + lane.feature);
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const typename Transform::template Rows<1> rows(inputs, group + j + word / 2, lane.token);
      const int h = word % 2;
      const int at = 4 * (group + j + word / 2) + 2 * h;
      const uint32_t g = input_pair<T>(gates, rows, acc[block], at, h);
      const uint32_t u = kHalves ? input_pair<T>(ups, rows, acc[1], at, h) : pack<T>(1.0f, 1.0f);
      words[word] = activate_pair<T>(function, g, u);
    }
    ptx::stmatrix_x4_transposed(chunk + lane.matrix + j * 1024, words);
  }
}

// The same for gates and up parts in neighbouring rows. Of a warp's 16 rows a thread has rows r and
// r + 8; lanes with even r have gates, those with odd r up parts. A lane gives its neighbour (four
// lanes on) the row that it doesn't need itself: then the even one has both of the pair in rows r,
// r + 1, the odd one both of rows r + 7, r + 8. So lane r has result r / 2, or 4 + r / 2; a second
// exchange puts the eight of them in order.
struct PairLane {
  bool odd;
  int ordered;      // whose result goes out of this lane
  uint32_t matrix;  // what it points stmatrix at: matrices 0, 1 are both blocks' results for 8
                    // tokens, 2, 3 the same for the next 8

  __device__ __forceinline__ explicit PairLane(uint32_t thread) {
    const uint32_t lane = thread % 32;
    const uint32_t row = lane / 4;
    odd = row % 2 != 0;
    ordered = static_cast<int>((row % 4 * 2 + row / 4) * 4 + lane % 4);
    const uint32_t column = (lane / 8 % 2 * 4 + thread / 32 % 4) ^ (lane % 8);
    matrix = (lane / 16 * 8 + lane % 8) * kRowBytes + column * 16;
  }
};

template <typename Transform, typename T, typename Traits, typename Function>
__device__ __forceinline__ void write_pair_results(const EpilogueInputs<Traits>& inputs,
                                                   const Function& function, const ChunkLane& lane,
                                                   const Accumulators<Traits>& acc, int group,
                                                   uint32_t chunk) {
  const PairLane pair(ptx::thread_index());
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int block = word % 2;
      const Transform transform(inputs, block * kBlockRows + lane.feature);
      const typename Transform::template Rows<1> rows(inputs, group + j + word / 2, lane.token);
      const int at = 4 * (group + j + word / 2);
      const uint32_t upper = input_pair<T>(transform, rows, acc[block], at, 0);
      const uint32_t lower = input_pair<T>(transform, rows, acc[block], at + 2, 1);
      const uint32_t got = __shfl_xor_sync(0xffffffffu, pair.odd ? upper : lower, 4);
      const uint32_t result =
          activate_pair<T>(function, pair.odd ? got : upper, pair.odd ? lower : got);
      words[word] = __shfl_sync(0xffffffffu, result, pair.ordered);
    }
    ptx::stmatrix_x4_transposed(chunk + pair.matrix + j * 1024, words);
  }
}

// All chunks of a tile, from position `cursor` of the ring on.
template <typename Transform, typename Traits, typename Storage, typename Function>
__device__ __forceinline__ void fill_activated_chunks(Storage& shared, const GmmArguments& args,
                                                      const Tile& tile,
                                                      const EpilogueInputs<Traits>& inputs,
                                                      const Function& function,
                                                      Cursor<Traits::kChunks>& cursor,
                                                      const Accumulators<Traits>& acc) {
  using T = typename Traits::ElementA;
  const ChunkLane lane(ptx::thread_index());
#pragma unroll
  for (int first = 0; first < Traits::kTokens; first += kChunkTokens) {
    if (first >= tile.rows) break;
    if (args.epilogue.activation.writes_input) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const FilledChunk<Traits> input(shared, cursor);
        write_chunk<Transform, false, T, 2>(inputs, lane, acc[block], block * kBlockRows, first / 8,
                                            input.address);
        ptx::fence_async_shared();
        input.publish();
      }
    }
#pragma unroll
    for (int block = 0; block < ActivatedChunks<Traits::kActivation>::kResults; ++block) {
      const FilledChunk<Traits> result(shared, cursor);
      if constexpr (Traits::kActivation == ActivationForm::kPairs) {
        write_pair_results<Transform, T, Traits>(inputs, function, lane, acc, first / 8,
                                                 result.address);
      } else {
        write_results<Transform, T, Traits>(inputs, function, lane, acc, block, first / 8,
                                            result.address);
      }
      ptx::fence_async_shared();
      result.publish();
    }
  }
}

template <typename Traits, typename Storage>
__device__ __forceinline__ void finish_activated_tile(Storage& shared, const GmmArguments& args,
                                                      const Tile& tile,
                                                      const EpilogueInputs<Traits>& inputs,
                                                      Cursor<Traits::kChunks>& cursor,
                                                      const Accumulators<Traits>& acc) {
  const ActivationArguments& activation = args.epilogue.activation;
  const auto fill = [&](const auto& function) {
    if (args.epilogue.has_factors) {
      fill_activated_chunks<RowFactors, Traits>(shared, args, tile, inputs, function, cursor, acc);
    } else {
      fill_activated_chunks<PlainSums, Traits>(shared, args, tile, inputs, function, cursor, acc);
    }
  };
  if (Tile::kind(tile.control) != Tile::kProduct) {
    // Every activation is 0 at 0.
    fill_activated_chunks<Zeros, Traits>(shared, args, tile, inputs, SquareGate{}, cursor, acc);
  } else if (takes_normal(Traits::kActivation, Traits::kMajorA == ptx::Major::kK) &&
             activation.function == ActivationFunction::kNormal) {
    // Its factors are always loaded: with none to wait for the compiler evaluates so many results
    // at once that it runs out of registers.
    fill_activated_chunks<RowFactors, Traits>(shared, args, tile, inputs, NormalGate{}, cursor,
                                              acc);
  } else if (Traits::kActivation == ActivationForm::kEach &&
             activation.function == ActivationFunction::kSquare) {
    fill(SquareGate{});
  } else {
    fill(SigmoidGate{activation});
  }
}

}  // namespace cadre::sm90
