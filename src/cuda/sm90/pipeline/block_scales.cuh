// Scales for blocks of 128 of K on their way into the stages: the lanes of the warp that fills a
// stage multiply those of its tokens with the weights' and write the products in the order in which
// the warpgroups read them. The copy engine can't bring them: a group's scales begin anywhere, and
// it starts on 16 bytes alone.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/mma/promoted_loop.cuh"
#include "cuda/sm90/pipeline/cursor.cuh"

namespace cadre::sm90 {

// gmm's, of each stage. Those of results by rows are in row_scales.cuh.
template <typename Traits>
struct TokenScales {
  static constexpr uint32_t kBytesA = 0;  // of a stage
  static constexpr uint32_t kBytesB = (Traits::kWidth + 31) / 32 * 128;
  alignas(16) float of_stage[Traits::kStages]
                            [(Traits::kWidth + 31) / 32 * 32];  // at scale_place(token)
};

// The bits of a scale, and the number that they mean.
__device__ __forceinline__ uint32_t read_scale(const void* data, int64_t at, bool is_e8m0) {
  return is_e8m0 ? static_cast<const uint8_t*>(data)[at] : static_cast<const uint32_t*>(data)[at];
}
__device__ __forceinline__ float scale_of(uint32_t bits, bool is_e8m0) {
  if (!is_e8m0) return __uint_as_float(bits);
  if (bits == 0xff) return __uint_as_float(0x7fc00000);
  return __uint_as_float(bits == 0 ? 0x00400000 : bits << 23);  // 2^(bits - 127)
}

// A lane's share of the scales of one stage, on their way from memory: of tokens lane, lane + 32
// and so on, and of the weights.
template <int kCount>
struct LoadedScales {
  uint32_t tokens[kCount];
  uint32_t weights;
};

// Where the scales of gmm's tile lie.
template <typename Traits>
class TokenTileScales {
 public:
  static constexpr bool kCopies = false;  // products of two scales
  static constexpr int kCount = (Traits::kWidth + 31) / 32;

  __device__ __forceinline__ TokenTileScales(const GmmArguments& args, const Tile& tile)
      : scales_(args.block_scales),
        tokens_(tile.row * scales_.tokens.outer_stride),
        weights_(tile.feature / 128 * scales_.weights.outer_stride),
        weights_data_(scales_.weights.data),
        rows_(tile.rows) {
    static_assert(Traits::kFeatures == 128 && Traits::kTileK == 128);
    if (scales_.weights.list != nullptr) {
      weights_data_ = scales_.weights.list[tile.group];
    } else {
      weights_ += tile.group * scales_.weights.group_stride;
    }
  }

  __device__ __forceinline__ LoadedScales<kCount> load(int block) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const ScaleBlocks& tokens = scales_.tokens;
    const int64_t first = tokens_ + block * tokens.inner_stride + lane * tokens.outer_stride;
    LoadedScales<kCount> loaded;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const bool inside = lane + 32 * i < rows_;
      loaded.tokens[i] =
          inside ? read_scale(tokens.data, first + 32 * i * tokens.outer_stride, tokens.is_e8m0)
                 : 0;
    }
    loaded.weights = read_scale(weights_data_, weights_ + block * scales_.weights.inner_stride,
                                scales_.weights.is_e8m0);
    return loaded;
  }

  __device__ __forceinline__ void store(const LoadedScales<kCount>& loaded,
                                        TokenScales<Traits>& scales, uint32_t slot) const {
    float* to = scales.of_stage[slot];
    const int lane = static_cast<int>(threadIdx.x % 32);
    const float weights = scale_of(loaded.weights, scales_.weights.is_e8m0);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[scale_place(lane) + 32 * i] = scale_of(loaded.tokens[i], scales_.tokens.is_e8m0) * weights;
    }
  }

 private:
  const BlockScales& scales_;
  int64_t tokens_;  // the first of them, in elements
  int64_t weights_;
  const void* weights_data_;
  int rows_;
};

// Waits for a stage to be free and has its operands brought; returns its full barrier. By a warp.
template <typename Traits, typename Storage, typename Source>
__device__ __forceinline__ uint32_t begin_stage(Storage& shared, const Source& source,
                                                const Cursor<Traits::kStages>& stage, int block) {
  const uint32_t full = ptx::shared_address(&shared.stage_full[stage.slot()]);
  ptx::mbarrier_wait(ptx::shared_address(&shared.stage_empty[stage.slot()]), stage.parity() ^ 1);
  if (threadIdx.x % 32 == 0) {
    const uint32_t base = ptx::shared_address(shared.stages[stage.slot()]);
    ptx::mbarrier_arrive_expect(full, source.stage_bytes());
    source.load_a(base, full, block);
    source.load_b(base + Traits::kBytesA, full, block);
  }
  return full;
}

// As fill_stages(), by a whole warp. Scales in f32 are copied into the stage, if the kernel takes
// them as they are; others are asked for two stages ahead and go through registers.
template <typename Op, typename Storage, typename Source>
__device__ __forceinline__ void fill_scaled_stages(Storage& shared, Source source,
                                                   const typename Op::Arguments& args) {
  using Traits = typename Op::Traits;
  Cursor<Traits::kStages> stage;
  while (source.next()) {
    const int blocks = source.blocks();
    if (blocks == 0) continue;
    const typename Op::TileScales of_tile(args, source.tile());
    if constexpr (Op::TileScales::kCopies) {
      if (of_tile.copies()) {
        for (int block = 0; block < blocks; ++block) {
          const uint32_t full = begin_stage<Traits>(shared, source, stage, block);
          of_tile.copy(block, shared.scales, stage.slot(), full);
          stage.advance();
        }
        continue;
      }
    }
    auto even = of_tile.load(0);
    auto odd = of_tile.load(min(1, blocks - 1));
    const auto fill = [&](int block, auto& loaded) {
      const uint32_t full = begin_stage<Traits>(shared, source, stage, block);
      of_tile.store(loaded, shared.scales, stage.slot());
      ptx::mbarrier_arrive(full);  // each lane: its own writes
      if (block + 2 < blocks) loaded = of_tile.load(block + 2);
      stage.advance();
    };
    for (int block = 0; block < blocks; block += 2) {
      fill(block, even);
      if (block + 1 < blocks) fill(block + 1, odd);
    }
  }
}

}  // namespace cadre::sm90
