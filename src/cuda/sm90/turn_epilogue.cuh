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

// 16 bits: 8-token group j of a block, from `acc` of that block. `address` is the lane's for
// stmatrix.
template <TurnResult kResult, typename T, typename Inputs>
__device__ __forceinline__ void fill_tokens(const Inputs& inputs, const FactorRounding& rounding,
                                            const float* acc, int j, uint32_t address) {
  uint32_t words[4];
  if constexpr (kResult == TurnResult::kPlain) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = pack<T>(acc[4 * j + 2 * i], acc[4 * j + 2 * i + 1]);
  } else {
    uint32_t c[4] = {};
    if constexpr (kResult == TurnResult::kWithC) ptx::ldmatrix_x4_transposed(c, address);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float value[4];
      rounding.values(inputs, acc, j + half, value);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if constexpr (kResult == TurnResult::kWithC) {
          const float2 pair = unpack<T>(c[2 * half + h]);
          value[2 * h] = fmaf(inputs.beta, pair.x, value[2 * h]);
          value[2 * h + 1] = fmaf(inputs.beta, pair.y, value[2 * h + 1]);
        }
        words[2 * half + h] = pack<T>(value[2 * h], value[2 * h + 1]);
      }
    }
  }
  ptx::stmatrix_x4_transposed(address, words);
}

// 8-token groups 8c to 8c + 7 of a block: 64 tokens.
template <TurnResult kResult, typename T, typename Inputs>
__device__ __forceinline__ void fill_chunk(const Inputs& inputs, const ConsumerPlace& place,
                                           const float* acc, int block, int group, uint32_t chunk) {
  const uint32_t address = chunk + matrix_offset(place);
  const FactorRounding rounding(inputs, place, block * kBlockFeatures);
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    fill_tokens<kResult, T>(inputs, rounding, acc, group + j, address + j * 1024);
  }
}

// The same for fp32 and 32 tokens.
template <TurnResult kResult, typename Inputs>
__device__ __forceinline__ void fill_wide_chunk(const Inputs& inputs, const ConsumerPlace& place,
                                                const float* acc, int block, int group,
                                                uint32_t chunk) {
  const FactorRounding rounding(inputs, place, block * kBlockFeatures);
  const int feature = feature_in_block(place);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    float value[4];
    if constexpr (kResult == TurnResult::kPlain) {
#pragma unroll
      for (int i = 0; i < 4; ++i) value[i] = acc[4 * (group + j) + i];
    } else {
      rounding.values(inputs, acc, group + j, value);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t address =
          chunk + j * 1024 + wide_offset(rounding.first_token + i % 2, feature + i / 2 * 8);
      if constexpr (kResult == TurnResult::kWithC) {
        value[i] = fmaf(inputs.beta, ptx::load_shared(address), value[i]);
      }
      ptx::store_shared(address, value[i]);
    }
  }
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
    __syncwarp();
    if (args.whole_columns != args.n) {
      store_rest_in_turn(args, place, turn_place(args, tile), address,
                         tile.feature + chunk % 2 * kBlockFeatures, first_token);
      __syncwarp();
    }
    if (place.lane() == 0) {
      ptx::mbarrier_arrive(ptx::shared_address(shared.chunk_full) + slot * 8);
    }
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
