// The factors of gmm's formula, row_scale * (alpha * sum + bias_scale * bias) + beta * C, where the
// sum of FP8 operands has the scales of its token and its feature as two more: how they are read
// from memory, and the warp that brings those of a tile into shared memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/schedule/tile.cuh"

namespace cadre::sm90 {

__device__ __forceinline__ float read_factor(const FactorVector& vector, int64_t index,
                                             int64_t begin = 0) {
  const int64_t at = begin + index * vector.stride;
  switch (vector.kind) {
    case ElementKind::kBf16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(vector.data)[at]);
    case ElementKind::kF16:
      return __half2float(static_cast<const __half*>(vector.data)[at]);
    case ElementKind::kF64:
      return static_cast<float>(static_cast<const double*>(vector.data)[at]);
    default:
      return static_cast<const float*>(vector.data)[at];
  }
}

__device__ __forceinline__ float read_factor(const GroupFactor& factor, int group) {
  return factor.per_group.data != nullptr ? read_factor(factor.per_group, group) : factor.value;
}

// Elements first, first + 32 and so on of a vector that begins at `begin`, as far as they lie
// before `end`; the rest of `values` keeps what it holds. All loads are on their way before the
// first one is waited for. With kOf below kCount the vector is several, `further` elements apart,
// and kOf elements of each are read.
template <int kCount, int kOf = kCount>
__device__ __forceinline__ void read_factors(const FactorVector& vector, int64_t begin, int first,
                                             int end, float (&values)[kCount],
                                             int64_t further = 0) {
  const int64_t from = begin + first * vector.stride;
  const int64_t step = 32 * vector.stride;
  const auto at = [&](int i) { return i % kOf * step + i / kOf * further; };
  const auto inside = [&](int i) { return first + 32 * (i % kOf) < end; };
  if (vector.kind == ElementKind::kF32) {
    const float* data = static_cast<const float*>(vector.data) + from;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (inside(i)) values[i] = data[at(i)];
    }
  } else if (vector.kind == ElementKind::kF64) {
    const double* data = static_cast<const double*>(vector.data) + from;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (inside(i)) values[i] = static_cast<float>(data[at(i)]);
    }
  } else {
    const uint16_t* data = static_cast<const uint16_t*>(vector.data) + from;
    uint16_t bits[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) bits[i] = inside(i) ? data[at(i)] : 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float value = vector.kind == ElementKind::kBf16
                              ? __uint_as_float(uint32_t{bits[i]} << 16)
                              : __half2float(__ushort_as_half(bits[i]));
      if (inside(i)) values[i] = value;
    }
  }
}

__device__ __forceinline__ bool has_bias(const EpilogueArguments& e) {
  return e.bias.data != nullptr || e.bias_list != nullptr;
}

// What the sums and the bias of one token are multiplied with.
struct RowFactor {
  float product;  // row_scale * alpha * the scale of the token
  float bias;     // row_scale * bias_scale
};

// Factors of a tile, written by the loading warp and read by its consumers.
template <typename Traits>
struct alignas(16) EpilogueInputs {
  RowFactor rows[Traits::kTokens];
  float bias[Traits::kRowsA];
  float columns[Traits::kScaledResults ? Traits::kRowsA : 1];  // scales of features
  float beta;
};

// A lane's share of the row factors of kCount x 32 tokens of a tile, on their way from memory.
template <int kCount, bool kScaled>
struct LoadedRows {
  float scale[kCount];
  float bias_scale[kCount];
  float operand_scale[kScaled ? kCount : 1];  // of FP8

  __device__ __forceinline__ LoadedRows(const EpilogueArguments& epilogue, const Tile& tile,
                                        int first) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) scale[i] = bias_scale[i] = 1.0f;
    if (epilogue.row_scale.data != nullptr) {
      read_factors(epilogue.row_scale, tile.row * epilogue.row_scale.stride, first, tile.rows,
                   scale);
    }
    if (has_bias(epilogue) && epilogue.bias_scale.data != nullptr) {
      read_factors(epilogue.bias_scale, tile.row * epilogue.bias_scale.stride, first, tile.rows,
                   bias_scale);
    }
    if constexpr (kScaled) {
#pragma unroll
      for (float& value : operand_scale) value = 1.0f;
      read_factors(epilogue.lhs_scale, tile.row * epilogue.lhs_scale.stride, first, tile.rows,
                   operand_scale);
    }
  }

  __device__ __forceinline__ void store(RowFactor* rows, int first, int end, float alpha) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + 32 * i >= end) break;
      const float product = kScaled ? scale[i] * alpha * operand_scale[i] : scale[i] * alpha;
      rows[first + 32 * i] = {.product = product, .bias = scale[i] * bias_scale[i]};
    }
  }
};

// One warp: the factors of a product tile. They are asked for all at once and before the place in
// shared memory is free, so that the products of the tile before hide their latency; those of the
// last 64 of 256 tokens, and with scales of all but 64, only then, for want of registers.
template <typename Traits>
class LoadedFactors {
 public:
  __device__ __forceinline__ LoadedFactors(const GmmArguments& args, const Tile& tile)
      : rows_(args.epilogue, tile, threadIdx.x % 32) {
    const EpilogueArguments& epilogue = args.epilogue;
#pragma unroll
    for (float& value : bias_) value = -0.0f;  // x + -0 is x for every x
    if (has_bias(epilogue)) {
      FactorVector bias = epilogue.bias;
      int64_t begin = tile.group * epilogue.bias_group_stride;
      if (epilogue.bias_list != nullptr) {
        bias.data = epilogue.bias_list[tile.group];
        begin = 0;
      }
      read_bias(args, tile, bias, begin);
    }
    alpha_ = read_factor(epilogue.alpha, tile.group);
    beta_ = read_factor(epilogue.beta, tile.group);
  }

  __device__ __forceinline__ void store(EpilogueInputs<Traits>& inputs, uint64_t& full,
                                        const GmmArguments& args, const Tile& tile) const {
    const int lane = threadIdx.x % 32;
    rows_.store(inputs.rows, lane, tile.rows, alpha_);
    if constexpr (Traits::kTokens > kTokensAhead) {
#pragma unroll 1
      for (int first = kTokensAhead; first < Traits::kTokens; first += kTokensLater) {
        const LoadedRows<kTokensLater / 32, Traits::kScaledResults> rest(args.epilogue, tile,
                                                                         lane + first);
        rest.store(inputs.rows, lane + first, tile.rows, alpha_);
      }
    }
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) inputs.bias[lane + 32 * i] = bias_[i];
    if constexpr (Traits::kScaledResults) store_columns(inputs, args, tile);
    if (lane == 0) inputs.beta = beta_;
    ptx::mbarrier_arrive(ptx::shared_address(&full));  // each lane: its own writes
  }

 private:
  static constexpr int kMostAhead = Traits::kScaledResults ? 64 : 192;
  static constexpr int kTokensAhead = Traits::kTokens < kMostAhead ? Traits::kTokens : kMostAhead;
  static constexpr int kTokensLater = 64;                // together
  static constexpr int kFeatures = Traits::kRowsA / 32;  // a lane's

  // The group's bias, which begins at `begin`; where gates are a block, first that of the gates.
  __device__ __forceinline__ void read_bias(const GmmArguments& args, const Tile& tile,
                                            FactorVector bias, int64_t begin) {
    constexpr bool kHalves = Traits::kActivation == ActivationForm::kHalves;
    constexpr int kColumns = kHalves ? 1 : columns_of(Traits::kActivation);
    begin += tile.feature * kColumns * bias.stride;
    read_factors<kFeatures, kFeatures / (kHalves ? 2 : 1)>(
        bias, begin, threadIdx.x % 32, (args.n - tile.feature) * kColumns, bias_,
        kHalves ? args.n * bias.stride : 0);
  }

  // The scales of the tile's features.
  __device__ __forceinline__ static void store_columns(EpilogueInputs<Traits>& inputs,
                                                       const GmmArguments& args, const Tile& tile) {
    const int lane = threadIdx.x % 32;
    FactorVector scales = args.epilogue.rhs_scale;
    int64_t begin = tile.group * args.epilogue.rhs_scale_group_stride;
    if (args.epilogue.rhs_scale_list != nullptr) {
      scales.data = args.epilogue.rhs_scale_list[tile.group];
      begin = 0;
    }
    float values[kFeatures] = {};
    read_factors(scales, begin + tile.feature * scales.stride, lane, args.n - tile.feature, values);
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) inputs.columns[lane + 32 * i] = values[i];
  }

  LoadedRows<kTokensAhead / 32, Traits::kScaledResults> rows_;
  float bias_[kFeatures];
  float alpha_;
  float beta_;
};

}  // namespace cadre::sm90
