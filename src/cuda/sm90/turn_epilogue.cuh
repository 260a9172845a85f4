// The epilogue where warpgroups take turns: a warpgroup writes the results of its tile into chunks
// of shared memory (turn_output.cuh), each warp at its own pace, while the other one multiplies. A
// warp has 16 features of each block: what it writes and the C that it reads are its own.
#pragma once

#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/ldmatrix.cuh"
#include "cuda/ptx/shared_access.cuh"
#include "cuda/ptx/stmatrix.cuh"
#include "cuda/sm90/epilogue.cuh"
#include "cuda/sm90/epilogue_f32.cuh"
#include "cuda/sm90/factors.cuh"
#include "cuda/sm90/turn_storage.cuh"

namespace cadre::sm90 {

// What becomes of the sums of a tile. Where all rows of a group have the same factors they
// aren't read from shared memory: at K = 768 these reads and their products cost 5 % (kernels.md).
enum class TurnResult {
  kZeros,           // there are no products
  kPlain,           // rounded
  kFactors,         // multiplied with the group's factor, bias added
  kRowFactors,      // the same with the row's factors
  kFactorsAndC,     // and beta * C
  kRowFactorsAndC,  // the same with the row's factors
};
constexpr bool has_factors(TurnResult result) {
  return result != TurnResult::kZeros && result != TurnResult::kPlain;
}
constexpr bool has_row_factors(TurnResult result) {
  return result == TurnResult::kRowFactors || result == TurnResult::kRowFactorsAndC;
}
constexpr bool has_c(TurnResult result) {
  return result == TurnResult::kFactorsAndC || result == TurnResult::kRowFactorsAndC;
}

// Where a thread's results of a tile lie, worked out once for all of its chunks.
struct TurnLane {
  uint32_t matrix;   // 16 bits: what the lane points stmatrix and ldmatrix at in a chunk
  uint32_t wide[4];  // fp32: its two features of two tokens; 8 tokens on is 1024 bytes on
  int feature;       // its first of a block
  int token;         // its first of 8

  __device__ __forceinline__ explicit TurnLane(const ConsumerPlace& place)
      : matrix(matrix_offset(place)), feature(feature_in_block(place)), token(pair_token()) {
#pragma unroll
    for (int i = 0; i < 4; ++i) wide[i] = wide_offset(token + i % 2, feature + i / 2 * 8);
  }
};

// The factors of two neighbouring tokens, the first one even: their own, or the group's.
template <TurnResult kResult, typename Inputs>
__device__ __forceinline__ RowFactorPair row_factors(const Inputs& inputs, float group_product,
                                                     int token) {
  RowFactorPair pair;
  if constexpr (has_row_factors(kResult)) {
    pair.read(inputs, token);
  } else {
    pair.row[0] = pair.row[1] = {.product = group_product, .bias = 1.0f};
  }
  return pair;
}

// The factors and C of 16 or 32 tokens are asked for together, before the first result is written:
// shared memory answers after some 30 cycles, and the compiler moves no read before a write.

// The factors of the thread's tokens of kCount 8-token groups from `group` on; `token` is its first
// of 8.
template <TurnResult kResult, int kCount, typename Inputs>
__device__ __forceinline__ void read_rows(const Inputs& inputs, int group, int token,
                                          RowFactorPair (&rows)[kCount]) {
  if constexpr (has_factors(kResult)) {
    const float product = has_row_factors(kResult) ? 1.0f : inputs.rows[0].product;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      rows[j] = row_factors<kResult>(inputs, product, token + 8 * (group + j));
    }
  }
}

// 16 bits, 32 tokens of a block from 8-token group `group` on. `address` is the lane's for stmatrix
// and ldmatrix.
template <TurnResult kResult, typename T, typename Inputs>
__device__ __forceinline__ void fill_tokens(const Inputs& inputs, const FeatureFactors& features,
                                            const float* acc, int group,
                                            const RowFactorPair (&rows)[4], uint32_t address) {
  constexpr bool kFactors = has_factors(kResult);
  constexpr bool kWithC = has_c(kResult);
  const float beta = kWithC ? inputs.beta : 0.0f;
  uint32_t c[2][4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (kWithC) ptx::ldmatrix_x4_transposed(c[i], address + 2 * i * 1024);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int j = 2 * i + word / 2;
      const int h = word % 2;
      const float* sums = acc + 4 * (group + j) + 2 * h;
      float value[2] = {0.0f, 0.0f};
      if constexpr (kResult != TurnResult::kZeros) {
        value[0] = sums[0];
        value[1] = sums[1];
      }
      if constexpr (kFactors) {
        value[0] = features.apply(value[0], h, rows[j].row[0]);
        value[1] = features.apply(value[1], h, rows[j].row[1]);
      }
      if constexpr (kWithC) {
        const float2 pair = unpack<T>(c[i][word]);
        value[0] = fmaf(beta, pair.x, value[0]);
        value[1] = fmaf(beta, pair.y, value[1]);
      }
      words[word] = pack<T>(value[0], value[1]);
    }
    ptx::stmatrix_x4_transposed(address + 2 * i * 1024, words);
  }
}

// 8-token groups `group` to group + 7 of a block: 64 tokens.
template <TurnResult kResult, typename T, typename Inputs>
__device__ __forceinline__ void fill_chunk(const Inputs& inputs, const TurnLane& lane,
                                           const float* acc, int block, int group, uint32_t chunk) {
  const uint32_t address = chunk + lane.matrix;
  const FeatureFactors features(inputs, block * kBlockFeatures + lane.feature);
#pragma unroll
  for (int j = 0; j < 8; j += 4) {
    RowFactorPair rows[4];
    read_rows<kResult>(inputs, group + j, lane.token, rows);
    fill_tokens<kResult, T>(inputs, features, acc, group + j, rows, address + j * 1024);
  }
}

// The same for both blocks, so that the rows' factors are read once.
template <TurnResult kResult, typename Traits>
__device__ __forceinline__ void fill_two_chunks(const EpilogueInputs<Traits>& inputs,
                                                const TurnLane& lane,
                                                const Accumulators<Traits>& acc, int group,
                                                const uint32_t (&chunks)[2]) {
#pragma unroll
  for (int j = 0; j < 8; j += 4) {
    RowFactorPair rows[4];
    read_rows<kResult>(inputs, group + j, lane.token, rows);
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const FeatureFactors features(inputs, block * kBlockFeatures + lane.feature);
      fill_tokens<kResult, typename Traits::Element>(inputs, features, acc[block], group + j, rows,
                                                     chunks[block] + lane.matrix + j * 1024);
    }
  }
}

// fp32, 16 tokens of a block from 8-token group `group` on, at `base` in the chunk.
template <TurnResult kResult, typename Inputs>
__device__ __forceinline__ void fill_wide_tokens(const Inputs& inputs, const TurnLane& lane,
                                                 const FeatureFactors& features, const float* acc,
                                                 int group, uint32_t base) {
  constexpr bool kFactors = has_factors(kResult);
  constexpr bool kWithC = has_c(kResult);
  const float beta = kWithC ? inputs.beta : 0.0f;
  float c[2][4];
  RowFactorPair rows[2];
  read_rows<kResult>(inputs, group, lane.token, rows);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kWithC) c[j][i] = ptx::load_shared(base + j * 1024 + lane.wide[i]);
    }
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value = kResult == TurnResult::kZeros ? 0.0f : acc[4 * (group + j) + i];
      if constexpr (kFactors) value = features.apply(value, i / 2, rows[j].row[i % 2]);
      if constexpr (kWithC) value = fmaf(beta, c[j][i], value);
      ptx::store_shared(base + j * 1024 + lane.wide[i], value);
    }
  }
}

// The same for 32 tokens.
template <TurnResult kResult, typename Inputs>
__device__ __forceinline__ void fill_wide_chunk(const Inputs& inputs, const TurnLane& lane,
                                                const float* acc, int block, int group,
                                                uint32_t chunk) {
  const FeatureFactors features(inputs, block * kBlockFeatures + lane.feature);
  fill_wide_tokens<kResult>(inputs, lane, features, acc, group, chunk);
  fill_wide_tokens<kResult>(inputs, lane, features, acc, group + 2, chunk + 2048);
}

// The columns of out after the last whole 16 bytes (see send_chunk), from the warp's own part of a
// chunk of `tokens` tokens.
__device__ __forceinline__ void store_rest_in_turn(const GmmArguments& args,
                                                   const ConsumerPlace& place,
                                                   const OutputPlace& to, uint32_t chunk,
                                                   int feature, int first_token) {
  const int rest = args.whole_columns - feature;  // the first of them within the chunk
  if (args.whole_columns == args.n || rest < 0 || rest >= kBlockFeatures) return;
  if (rest / 16 != place.warp()) return;
  const bool wide = args.epilogue.out == ElementKind::kF32;
  const int tokens = wide ? kChunkTokens / 2 : kChunkTokens;
  for (int token = place.lane(); token < tokens && first_token + token < to.rows; token += 32) {
    for (int column = args.whole_columns; column < args.n; ++column) {
      if (wide) {
        out_row<float>(args, to, first_token + token)[column] =
            ptx::load_shared(chunk + wide_offset(token, column - feature));
      } else {
        out_row<uint16_t>(args, to, first_token + token)[column] = ptx::load_shared_half(
            chunk + token * 128 + ((rest / 8) ^ (token % 8)) * 16 + (column - feature) % 8 * 2);
      }
    }
  }
}

// A chunk of the ring that is filled.
template <typename Traits>
struct FilledChunk {
  uint32_t address;
  uint32_t full;  // its barrier

  // Waits until it may be written, and with C until that is there.
  __device__ __forceinline__ FilledChunk(TurnStorage<Traits>& shared,
                                         const Cursor<Traits::kChunks>& cursor)
      : address(ptx::shared_address(shared.chunks) + cursor.slot() * kChunkBytes),
        full(ptx::shared_address(shared.chunk_full) + cursor.slot() * 8) {
    const uint32_t slot = cursor.slot() * 8;
    // With C the second implies the first; racecheck follows no chain through the copy engine.
    ptx::mbarrier_wait(ptx::shared_address(shared.chunk_empty) + slot, cursor.parity() ^ 1);
    if (Traits::kWithC) {
      ptx::mbarrier_wait(ptx::shared_address(shared.chunk_loaded) + slot, cursor.parity());
    }
  }

  // It is complete: chunk `chunk` of the tile. `fence_async_shared` has been called since.
  __device__ __forceinline__ void publish(const GmmArguments& args, const ConsumerPlace& place,
                                          const Tile& tile, int chunk, int first_token) const {
    if (args.whole_columns != args.n) {
      __syncwarp();
      store_rest_in_turn(args, place, turn_place(args, tile), address,
                         tile.feature + chunk % 2 * kBlockFeatures, first_token);
    }
    // Each thread for what it wrote: racecheck knows of no order through __syncwarp and one
    // arrival.
    ptx::mbarrier_arrive(full);
  }
};

// All chunks of a tile, from position `cursor` of the ring on. kWide: fp32.
template <TurnResult kResult, bool kWide, typename Traits>
__device__ __forceinline__ void fill_chunks_in_turn(TurnStorage<Traits>& shared,
                                                    const GmmArguments& args,
                                                    const ConsumerPlace& place, const Tile& tile,
                                                    int inputs_slot,
                                                    Cursor<Traits::kChunks>& cursor,
                                                    const Accumulators<Traits>& acc) {
  const EpilogueInputs<Traits>& inputs = shared.inputs[inputs_slot];
  constexpr int kTokens = kWide ? kChunkTokens / 2 : kChunkTokens;
  const TurnLane lane(place);
  constexpr bool kTwo = kResult == TurnResult::kRowFactors && !kWide;
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kTokens * 2; chunk += kTwo ? 2 : 1) {
    const int first_token = chunk / 2 * kTokens;
    if (first_token >= tile.rows) break;
    const FilledChunk<Traits> one(shared, cursor);
    cursor.advance();
    if constexpr (kTwo) {
      const FilledChunk<Traits> other(shared, cursor);
      cursor.advance();
      fill_two_chunks<kResult, Traits>(inputs, lane, acc, first_token / 8,
                                       {one.address, other.address});
      ptx::fence_async_shared();
      one.publish(args, place, tile, chunk, first_token);
      other.publish(args, place, tile, chunk + 1, first_token);
      continue;
    } else if constexpr (kWide) {
      fill_wide_chunk<kResult>(inputs, lane, acc[chunk % 2], chunk % 2, first_token / 8,
                               one.address);
    } else {
      fill_chunk<kResult, typename Traits::Element>(inputs, lane, acc[chunk % 2], chunk % 2,
                                                    first_token / 8, one.address);
    }
    ptx::fence_async_shared();
    one.publish(args, place, tile, chunk, first_token);
  }
}

template <TurnResult kResult, typename Traits>
__device__ __forceinline__ void finish_in_turn(TurnStorage<Traits>& shared,
                                               const GmmArguments& args, const ConsumerPlace& place,
                                               const Tile& tile, int inputs_slot,
                                               Cursor<Traits::kChunks>& cursor,
                                               const Accumulators<Traits>& acc) {
  if (args.epilogue.out == ElementKind::kF32) {
    fill_chunks_in_turn<kResult, true>(shared, args, place, tile, inputs_slot, cursor, acc);
  } else {
    fill_chunks_in_turn<kResult, false>(shared, args, place, tile, inputs_slot, cursor, acc);
  }
}

}  // namespace cadre::sm90
