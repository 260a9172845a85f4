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

// What becomes of the sums of a tile.
enum class TurnResult {
  kPlain,    // rounded
  kFactors,  // multiplied with the row's factors, bias added
  kWithC,    // the same and beta * C
};

// The factors and C of 16 or 32 tokens are asked for together, before the first result is written:
// shared memory answers after some 30 cycles, and the compiler moves no read before a write.

// 16 bits, 32 tokens of a block from 8-token group `group` on. `token` is the thread's first of 8,
// `address` the lane's for stmatrix and ldmatrix.
template <TurnResult kResult, typename T, typename Inputs>
__device__ __forceinline__ void fill_tokens(const Inputs& inputs, const FeatureFactors& features,
                                            const float* acc, int group, int token,
                                            uint32_t address) {
  constexpr bool kFactors = kResult != TurnResult::kPlain;
  constexpr bool kWithC = kResult == TurnResult::kWithC;
  const float beta = kWithC ? inputs.beta : 0.0f;
  uint32_t c[2][4] = {};
  RowFactorPair rows[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if constexpr (kWithC) ptx::ldmatrix_x4_transposed(c[i], address + 2 * i * 1024);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if constexpr (kFactors) rows[j].read(inputs, token + 8 * (group + j));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t words[4];
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int j = 2 * i + word / 2;
      const int h = word % 2;
      const float* sums = acc + 4 * (group + j) + 2 * h;
      float value[2] = {sums[0], sums[1]};
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
__device__ __forceinline__ void fill_chunk(const Inputs& inputs, const ConsumerPlace& place,
                                           const float* acc, int block, int group, uint32_t chunk) {
  const uint32_t address = chunk + matrix_offset(place);
  const FeatureFactors features(inputs, block * kBlockFeatures + feature_in_block(place));
  const int token = kResult == TurnResult::kPlain ? 0 : pair_token();
  fill_tokens<kResult, T>(inputs, features, acc, group, token, address);
  fill_tokens<kResult, T>(inputs, features, acc, group + 4, token, address + 4 * 1024);
}

// fp32, 16 tokens of a block from 8-token group `group` on, at `base` in the chunk. `offset`: of
// the thread's two features of two tokens; 8 tokens on is 1024 bytes on.
template <TurnResult kResult, typename Inputs>
__device__ __forceinline__ void fill_wide_tokens(const Inputs& inputs,
                                                 const FeatureFactors& features, const float* acc,
                                                 int group, int token, uint32_t base,
                                                 const uint32_t (&offset)[4]) {
  constexpr bool kFactors = kResult != TurnResult::kPlain;
  constexpr bool kWithC = kResult == TurnResult::kWithC;
  const float beta = kWithC ? inputs.beta : 0.0f;
  float c[2][4];
  RowFactorPair rows[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kWithC) c[j][i] = ptx::load_shared(base + j * 1024 + offset[i]);
    }
    if constexpr (kFactors) rows[j].read(inputs, token + 8 * (group + j));
  }
#pragma unroll
  for (int j = 0; j < 2; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float value = acc[4 * (group + j) + i];
      if constexpr (kFactors) value = features.apply(value, i / 2, rows[j].row[i % 2]);
      if constexpr (kWithC) value = fmaf(beta, c[j][i], value);
      ptx::store_shared(base + j * 1024 + offset[i], value);
    }
  }
}

// The same for 32 tokens.
template <TurnResult kResult, typename Inputs>
__device__ __forceinline__ void fill_wide_chunk(const Inputs& inputs, const ConsumerPlace& place,
                                                const float* acc, int block, int group,
                                                uint32_t chunk) {
  const int feature = feature_in_block(place);
  const int token = pair_token();
  const FeatureFactors features(inputs, block * kBlockFeatures + feature);
  uint32_t offset[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) offset[i] = wide_offset(token + i % 2, feature + i / 2 * 8);
  fill_wide_tokens<kResult>(inputs, features, acc, group, token, chunk, offset);
  fill_wide_tokens<kResult>(inputs, features, acc, group + 2, token, chunk + 2048, offset);
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
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kTokens * 2; ++chunk) {
    const int first_token = chunk / 2 * kTokens;
    if (first_token >= tile.rows) break;
    const uint32_t slot = cursor.slot();
    const uint32_t address = ptx::shared_address(shared.chunks) + slot * kChunkBytes;
    // With C the second implies the first; racecheck follows no chain through the copy engine.
    ptx::mbarrier_wait(ptx::shared_address(shared.chunk_empty) + slot * 8, cursor.parity() ^ 1);
    if (Traits::kWithC) {
      ptx::mbarrier_wait(ptx::shared_address(shared.chunk_loaded) + slot * 8, cursor.parity());
    }
    if constexpr (kWide) {
      fill_wide_chunk<kResult>(inputs, place, acc[chunk % 2], chunk % 2, first_token / 8, address);
    } else {
      fill_chunk<kResult, typename Traits::Element>(inputs, place, acc[chunk % 2], chunk % 2,
                                                    first_token / 8, address);
    }
    ptx::fence_async_shared();
    if (args.whole_columns != args.n) {
      __syncwarp();
      store_rest_in_turn(args, place, turn_place(args, tile), address,
                         tile.feature + chunk % 2 * kBlockFeatures, first_token);
    }
    // Each thread for what it wrote: racecheck knows of no order through __syncwarp and one
    // arrival.
    ptx::mbarrier_arrive(ptx::shared_address(shared.chunk_full) + slot * 8);
    cursor.advance();
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
