// The K loop of FP8 whose sums are kept in f32: every stage (128 of K) is a sum of its own, which
// is multiplied with its block's scale, if it has one, and added to the totals in ascending order.
// A result's bits depend on nothing else.
//
// That takes as many instructions as a third of the products take cycles, so the two warpgroups of
// a tile take turns: one adds while the other one's products run.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_vector.cuh"
#include "cuda/ptx/warp.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/mma/k_loop.cuh"
#include "cuda/sm90/pipeline/cta.cuh"
#include "cuda/sm90/pipeline/cursor.cuh"

namespace cadre::sm90 {

// Where the scale of a stage's token lies among them: a thread reads those of its tokens 2q, 2q +
// 1, 8 + 2q and 8 + 2q + 1 of 16 (q: its lane's place among four) at once.
__device__ __forceinline__ constexpr int scale_place(int token) {
  return token / 16 * 16 + token % 8 / 2 * 4 + token / 8 % 2 * 2 + token % 2;
}

// The scales of a stage's 16 tokens from 16 * i on, as far as a thread needs them.
__device__ __forceinline__ float4 read_scales(uint32_t scales, int i) {
  return ptx::load_shared_float4(scales + 64 * i);
}

// A warpgroup's turn to issue products. It is handed on by every warp, see consume().
class ProductTurn {
 public:
  template <typename Storage>
  __device__ __forceinline__ ProductTurn(Storage& shared, int warpgroup)
      : turns_(ptx::shared_address(shared.multiply_turn)),
        warpgroup_(warpgroup),
        parity_(warpgroup == 0 ? 1 : 0) {}  // warpgroup 0 starts

  __device__ __forceinline__ void wait() {
    ptx::mbarrier_wait(turns_ + warpgroup_ * 8, parity_);
    parity_ ^= 1;
  }
  __device__ __forceinline__ void hand_on() const {
    if (ptx::first_of_warp()) ptx::mbarrier_arrive(turns_ + (warpgroup_ ^ 1) * 8);
  }

 private:
  uint32_t turns_;
  int warpgroup_;
  uint32_t parity_;
};

// Adds a stage's sums to the totals. `scales`: the thread's first one (kScaled).
template <typename Traits>
__device__ __forceinline__ void promote(Accumulators<Traits>& totals,
                                        const Accumulators<Traits>& sums, int width,
                                        uint32_t scales) {
  static_assert(Traits::kBlocks == 1);
  float4 scale = {1.0f, 1.0f, 1.0f, 1.0f};
  if constexpr (Traits::kPromotion == Promotion::kScaled) scale = read_scales(scales, 0);
#pragma unroll
  for (int i = 0; i < Traits::kWidth / kTokenStep; ++i) {
    if (i * kTokenStep >= width) break;
    float* total = totals[0] + 8 * i;
    const float* sum = sums[0] + 8 * i;
    float4 next = scale;
    if constexpr (Traits::kPromotion == Promotion::kScaled) {
      if (i + 1 < Traits::kWidth / kTokenStep) next = read_scales(scales, i + 1);
    }
    total[0] = fmaf(sum[0], scale.x, total[0]);
    total[1] = fmaf(sum[1], scale.y, total[1]);
    total[2] = fmaf(sum[2], scale.x, total[2]);
    total[3] = fmaf(sum[3], scale.y, total[3]);
    total[4] = fmaf(sum[4], scale.z, total[4]);
    total[5] = fmaf(sum[5], scale.w, total[5]);
    total[6] = fmaf(sum[6], scale.z, total[6]);
    total[7] = fmaf(sum[7], scale.w, total[7]);
    scale = next;
  }
}

// As multiply(): the totals are complete and every stage has been handed back on return. Without
// blocks they are zero.
template <typename Traits, typename Storage, typename Instruction>
__device__ __forceinline__ void multiply_promoted(Storage& shared, const ConsumerPlace& place,
                                                  const KBlocks<Traits>& blocks,
                                                  const Instruction& instruction, ProductTurn& turn,
                                                  Cursor<Traits::kStages>& stage,
                                                  Accumulators<Traits>& totals) {
  constexpr bool kScaled = Traits::kPromotion == Promotion::kScaled;
  const int count = blocks.count();
  const auto first = first_operands<Traits>(shared, place);
  const uint32_t stage_empty = ptx::shared_address(shared.stage_empty);
  const uint32_t stage_full = ptx::shared_address(shared.stage_full);
  uint32_t first_scales = 0;
  if constexpr (kScaled) {
    first_scales = ptx::shared_address(shared.scales.of_stage) + place.lane() % 4 * 16;
  }
  Accumulators<Traits> sums;
#pragma unroll
  for (float& total : totals[0]) total = 0.0f;
  for (int block = 0; block < count; ++block) {
    StageOperands operands = first.template of_stage<Traits>(stage.slot());
    ptx::mbarrier_wait(stage_full + stage.slot() * 8, stage.parity());
    turn.wait();
    if (block < blocks.full) {
      instruction.template issue<4, Traits>(sums, operands, 0);
    } else {
      for (int step = 0; step < blocks.rest_steps; ++step) {
        instruction.template issue<1, Traits>(sums, operands, step);
        operands.a += step_bytes(Traits::kMajorA) >> 4;
        operands.b += step_bytes(Traits::kMajorB) >> 4;
      }
    }
    turn.hand_on();
    ptx::wgmma_wait<0>();
    if constexpr (kScaled) {
      promote<Traits>(totals, sums, instruction.width,
                      first_scales + stage.slot() * sizeof shared.scales.of_stage[0]);
      if (ptx::first_of_warp()) ptx::mbarrier_arrive(stage_empty + stage.slot() * 8);
    } else {
      if (place.leader()) ptx::mbarrier_arrive(stage_empty + stage.slot() * 8);
      promote<Traits>(totals, sums, instruction.width, 0);
    }
    stage.advance();
  }
}

}  // namespace cadre::sm90
