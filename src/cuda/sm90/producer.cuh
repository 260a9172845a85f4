// The producer roles: one thread that loads operand tiles through TMA, and one warp that loads the
// epilogue's factors. A producer that gathers token rows by index replaces `produce_operands` and
// nothing else.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/factors.cuh"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/gmm_storage.cuh"
#include "cuda/sm90/schedule.cuh"

namespace cadre::sm90 {

// Loads the tokens of one stage: full boxes, then one box of what is left, so that no byte is read
// in vain. Boxes may reach past a group's last row: those tokens only feed columns of the
// accumulator that are never stored.
template <typename Traits>
__device__ __forceinline__ void load_tokens(const GmmArguments& args, const Tile& tile,
                                            uint32_t destination, uint32_t full, int k) {
  constexpr int kBox = Traits::kTokenBox;
  const int boxes = Tile::width(tile.control) / kBox;
  const int rest = Tile::width(tile.control) % kBox;
  for (int box = 0; box < boxes; ++box) {
    ptx::tma_load_2d(destination + box * kBox * kTileK * 2, &args.tokens_map, full,
                     ptx::kEvictNormal, k, tile.row + box * kBox);
  }
  if (rest > 0) {
    ptx::tma_load_2d(destination + boxes * kBox * kTileK * 2,
                     &args.tokens_rest_maps[rest / kTokenStep - 1], full, ptx::kEvictNormal, k,
                     tile.row + boxes * kBox);
  }
}

// Where a tile's weights are.
struct WeightsPlace {
  const CUtensorMap* map;
  int group;  // coordinate in the map
  int feature;
};

// One thread's way through the tiles that have products.
template <typename Traits, typename Storage>
class ProductTiles {
 public:
  Tile tile{};
  WeightsPlace weights{};

  __device__ __forceinline__ ProductTiles(Storage& shared, const GmmArguments& args)
      : shared_(shared), args_(args) {}

  // The next one; false when there is none.
  __device__ __forceinline__ bool next() {
    do {
      tile = read_tile(shared_, ring_);
      release_tile(shared_, ring_);
      ring_.advance();
      if (Tile::kind(tile.control) == Tile::kEnd) return false;
    } while (Tile::kind(tile.control) == Tile::kZero);

    weights = {.map = &args_.weights_map, .group = tile.group, .feature = tile.feature};
    if (args_.weights_maps != nullptr) {
      weights.map = args_.weights_maps + tile.group;
      weights.group = 0;
      if (mapped_group_ != tile.group) ptx::fence_tensor_map_acquire(weights.map);
      mapped_group_ = tile.group;
    }
    return true;
  }

  // What the copy engine brings into each stage of the tile.
  __device__ __forceinline__ uint32_t stage_bytes() const {
    return Traits::kWeightBytes + Tile::width(tile.control) * kTileK * 2;
  }

 private:
  Storage& shared_;
  const GmmArguments& args_;
  Cursor<Traits::kRingSlots> ring_;
  int mapped_group_ = -1;
};

// Loads the weights of one stage as blocks of 64 features: two with each box of rows of K, one with
// each box of rows of features.
template <typename Traits>
__device__ __forceinline__ void load_weights(const WeightsPlace& place, uint32_t destination,
                                             uint32_t full, int k) {
  constexpr bool kRowsOfK = Traits::kWeights == ptx::Major::kK;
  constexpr int kBoxBlocks = kRowsOfK ? 2 : 1;
#pragma unroll
  for (int block = 0; block < Traits::kFeatures / kBlockFeatures; block += kBoxBlocks) {
    const uint32_t to = destination + block * kBlockBytes;
    const int feature = place.feature + block * kBlockFeatures;
    if constexpr (kRowsOfK) {
      ptx::tma_load_3d(to, place.map, full, ptx::kEvictNormal, k, feature, place.group);
    } else {
      ptx::tma_load_3d(to, place.map, full, ptx::kEvictNormal, feature, k, place.group);
    }
  }
}

// Fills stage after stage with the tile's features and `width` tokens of 64 of K. Past k, n and m
// the copy engine writes zeros.
template <typename Traits, typename Storage>
__device__ void produce_operands(Storage& shared, const GmmArguments& args) {
  const int k_blocks = (args.k + kTileK - 1) / kTileK;
  ProductTiles<Traits, Storage> products(shared, args);
  Cursor<Traits::kStages> stage;
  while (products.next()) {
    const Tile& tile = products.tile;
    for (int block = 0; block < k_blocks; ++block) {
      const uint32_t full = ptx::shared_address(&shared.stage_full[stage.slot()]);
      const uint32_t base = ptx::shared_address(shared.stages[stage.slot()]);
      const int k = block * kTileK;
      ptx::mbarrier_wait(ptx::shared_address(&shared.stage_empty[stage.slot()]),
                         stage.parity() ^ 1);
      ptx::mbarrier_arrive_expect(full, products.stage_bytes());
      load_weights<Traits>(products.weights, base, full, k);
      load_tokens<Traits>(args, tile, base + Traits::kWeightBytes, full, k);
      stage.advance();
    }
  }
}

// A lane's share of the row factors of kCount x 32 tokens of a tile, on their way from memory.
template <int kCount>
struct LoadedRows {
  float scale[kCount];
  float bias_scale[kCount];

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
  }

  __device__ __forceinline__ void store(RowFactor* rows, int first, int end, float alpha) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + 32 * i >= end) break;
      rows[first + 32 * i] = {.product = scale[i] * alpha, .bias = scale[i] * bias_scale[i]};
    }
  }
};

// One warp: the factors of a product tile. They are asked for all at once and before the place in
// shared memory is free, so that the products of the tile before hide their latency; those of the
// last 64 of 256 tokens only then, for want of registers.
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
      begin += tile.feature * bias.stride;
      read_factors(bias, begin, threadIdx.x % 32, args.n - tile.feature, bias_);
    }
    alpha_ = epilogue.alpha.data != nullptr ? read_factor(epilogue.alpha, tile.group)
                                            : epilogue.alpha_value;
    beta_ = group_beta(epilogue, tile.group);
  }

  __device__ __forceinline__ void store(EpilogueInputs<Traits>& inputs, uint64_t& full,
                                        const GmmArguments& args, const Tile& tile) const {
    const int lane = threadIdx.x % 32;
    rows_.store(inputs.rows, lane, tile.rows, alpha_);
    if constexpr (Traits::kTokens > kTokensAhead) {
      constexpr int kRest = (Traits::kTokens - kTokensAhead) / 32;
      const LoadedRows<kRest> rest(args.epilogue, tile, lane + kTokensAhead);
      rest.store(inputs.rows, lane + kTokensAhead, tile.rows, alpha_);
    }
#pragma unroll
    for (int i = 0; i < kFeatures; ++i) inputs.bias[lane + 32 * i] = bias_[i];
    if (lane == 0) inputs.beta = beta_;
    ptx::mbarrier_arrive(ptx::shared_address(&full));  // each lane: its own writes
  }

 private:
  static constexpr int kTokensAhead = Traits::kTokens < 192 ? Traits::kTokens : 192;
  static constexpr int kFeatures = Traits::kFeatures / 32;  // a lane's

  LoadedRows<kTokensAhead / 32> rows_;
  float bias_[kFeatures];
  float alpha_;
  float beta_;
};

// The same for all tiles, while their products run. Every consumer thread arrives on inputs_empty
// once it has read a tile's factors.
template <typename Traits>
__device__ void produce_epilogue_inputs(GmmStorage<Traits>& shared, const GmmArguments& args) {
  Cursor<Traits::kRingSlots> ring;
  Cursor<1> inputs;
  while (true) {
    const Tile tile = take_tile(shared, ring);
    if (Tile::kind(tile.control) == Tile::kEnd) return;
    if (Tile::kind(tile.control) == Tile::kZero || !args.epilogue.has_factors) continue;
    const LoadedFactors<Traits> factors(args, tile);
    ptx::mbarrier_wait(ptx::shared_address(&shared.inputs_empty), inputs.parity() ^ 1);
    factors.store(shared.inputs, shared.inputs_full, args, tile);
    inputs.advance();
  }
}

}  // namespace cadre::sm90
