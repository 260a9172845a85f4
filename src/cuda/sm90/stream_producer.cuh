// The producer of shapes that are bound by reading weights: several stages at a time, so that
// memory is asked for pieces of a row that lie side by side at once.
#pragma once

#include "cuda/sm90/producer.cuh"

namespace cadre::sm90 {

// Stages loaded together, and stages that are full or on their way at most. Measured
// (docs/kernels.md): more of either is slower, whatever the shared memory holds.
struct StreamDepth {
  uint32_t burst;
  uint32_t ahead;
};
constexpr StreamDepth stream_depth(ptx::Major weights) {
  return weights == ptx::Major::kK ? StreamDepth{.burst = 2, .ahead = 8}
                                   : StreamDepth{.burst = 3, .ahead = 7};
}

// As produce_operands; a tile's last burst may be shorter.
template <typename Traits, typename Storage>
__device__ void stream_operands(Storage& shared, const GmmArguments& args) {
  constexpr uint32_t kStages = Traits::kStages;
  constexpr StreamDepth kDepth = stream_depth(Traits::kWeights);
  // The consumers hand a stage back when they have begun the next one.
  static_assert(kDepth.burst < kDepth.ahead && kDepth.ahead <= kStages);
  const int k_blocks = (args.k + kTileK - 1) / kTileK;
  ProductTiles<Traits, Storage> products(shared, args);
  uint32_t count = 0;  // stages filled so far
  while (products.next()) {
    const Tile& tile = products.tile;
    for (int first = 0; first < k_blocks; first += static_cast<int>(kDepth.burst)) {
      const int burst = min(static_cast<int>(kDepth.burst), k_blocks - first);
      for (int i = 0; i < burst; ++i) {
        if (count + i < kDepth.ahead) continue;
        const uint32_t back = count + i - kDepth.ahead;
        ptx::mbarrier_wait(ptx::shared_address(&shared.stage_empty[back % kStages]),
                           back / kStages % 2);
      }
      for (int i = 0; i < burst; ++i) {
        const uint32_t slot = (count + i) % kStages;
        const uint32_t full = ptx::shared_address(&shared.stage_full[slot]);
        ptx::mbarrier_arrive_expect(full, products.stage_bytes());
        load_weights<Traits>(products.weights, ptx::shared_address(shared.stages[slot]), full,
                             (first + i) * kTileK);
      }
      for (int i = 0; i < burst; ++i) {
        const uint32_t slot = (count + i) % kStages;
        load_tokens<Traits>(args, tile,
                            ptx::shared_address(shared.stages[slot]) + Traits::kWeightBytes,
                            ptx::shared_address(&shared.stage_full[slot]), (first + i) * kTileK);
      }
      count += burst;
    }
  }
}

}  // namespace cadre::sm90
