// The K loop of FP8 whose sums are kept in f32: every stage (128 of K) is a sum of its own, which
// is multiplied with its block's scale, if it has one, and added to the totals in ascending order.
// A result's bits depend on nothing else.
//
// That takes as many instructions as a third of the products take cycles, so a warpgroup has its
// tokens in two parts and adds the sums of one while the products of the other one run.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/shared_access.cuh"
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

// A part of a tile's tokens whose products are one wgmma group.
template <int kFirst_, int kTokens_>
struct TokenPart {
  static constexpr int kFirst = kFirst_;
  static constexpr int kTokens = kTokens_;
};

// The products of a stage with a part of its tokens, as sums of their own.
template <typename Traits, typename Part>
__device__ __forceinline__ void issue_part(float (&sums)[Part::kTokens / 2],
                                           const StageOperands& operands) {
  using A = typename Traits::ElementA;
  using B = typename Traits::ElementB;
  constexpr int kStep = step_bytes(Traits::kMajorA) >> 4;
  constexpr int kB = Part::kFirst * kRowBytes >> 4;
  const auto issue = [&]<int kAt>() {
    ptx::wgmma_at<Part::kTokens, A, B, Traits::kMajorA, Traits::kMajorB, kAt * kStep,
                  kB + kAt * kStep>(sums, operands.a, operands.b, kAt > 0);
  };
  ptx::wgmma_fence();
  issue.template operator()<0>();
  issue.template operator()<1>();
  issue.template operator()<2>();
  issue.template operator()<3>();
  ptx::wgmma_commit();
}

// Where a thread finds the scales of a stage: by rows, those of A's rows and of B's columns.
struct ScaleAddresses {
  uint32_t a = 0;
  uint32_t b = 0;  // gmm: the products of both
};

// Adds a part's sums, which are complete, to the totals.
template <typename Traits, typename Part>
__device__ __forceinline__ void promote(Accumulators<Traits>& totals,
                                        float (&sums)[Part::kTokens / 2],
                                        const ScaleAddresses& scales) {
  ptx::wgmma_results(sums);
  float of_row[2] = {};
  if constexpr (Traits::kByRows && scales_stages(Traits::kPromotion)) {
    of_row[0] = ptx::load_shared(scales.a);
    of_row[1] = ptx::load_shared(scales.a + 8 * sizeof(float));
  }
  float of_block[2] = {};
#pragma unroll
  for (int i = 0; i < Part::kTokens / kTokenStep; ++i) {
    float* total = totals[0] + Part::kFirst / 2 + 8 * i;
    const float* sum = sums + 8 * i;
    constexpr int kColumn = Part::kFirst;
    if constexpr (Traits::kPromotion == Promotion::kScaledColumns) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float2 column =
            ptx::load_shared_float2(scales.b + (kColumn + kTokenStep * i + 8 * j) * 4);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int at = 4 * j + 2 * h;
          total[at] = fmaf(sum[at], of_row[h] * column.x, total[at]);
          total[at + 1] = fmaf(sum[at + 1], of_row[h] * column.y, total[at + 1]);
        }
      }
    } else if constexpr (Traits::kByRows && Traits::kPromotion == Promotion::kScaled) {
      if (i == 0 || (kColumn + kTokenStep * i) % 64 == 0) {
        const float block = ptx::load_shared(scales.b + (kColumn + kTokenStep * i) / 64 * 4);
        of_block[0] = of_row[0] * block;
        of_block[1] = of_row[1] * block;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) total[j] = fmaf(sum[j], of_block[j / 2 % 2], total[j]);
    } else if constexpr (Traits::kPromotion == Promotion::kScaled) {
      const float4 scale = read_scales(scales.b, Part::kFirst / kTokenStep + i);
      total[0] = fmaf(sum[0], scale.x, total[0]);
      total[1] = fmaf(sum[1], scale.y, total[1]);
      total[2] = fmaf(sum[2], scale.x, total[2]);
      total[3] = fmaf(sum[3], scale.y, total[3]);
      total[4] = fmaf(sum[4], scale.z, total[4]);
      total[5] = fmaf(sum[5], scale.w, total[5]);
      total[6] = fmaf(sum[6], scale.z, total[6]);
      total[7] = fmaf(sum[7], scale.w, total[7]);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) total[j] += sum[j];
    }
  }
}

// The stage that a warpgroup is at.
template <typename Traits, typename Storage>
class StageInWork {
 public:
  __device__ __forceinline__ StageInWork(Storage& shared, const ConsumerPlace& place,
                                         Cursor<Traits::kStages>& stage)
      : first_(first_operands<Traits>(shared, place)),
        full_(ptx::shared_address(shared.stage_full)),
        empty_(ptx::shared_address(shared.stage_empty)),
        stage_(stage) {
    if constexpr (kScaled && Traits::kByRows) {
      const int row = place.warpgroup * kBlockRows + place.warp() * 16 + place.lane() / 4;
      scales_ = {ptx::shared_address(shared.scales.a) + row * 4,
                 ptx::shared_address(shared.scales.b)};
      if (Traits::kPromotion == Promotion::kScaledColumns) scales_.b += place.lane() % 4 * 8;
    } else if constexpr (kScaled) {
      scales_.b = ptx::shared_address(shared.scales.of_stage) + place.lane() % 4 * 16;
    }
  }

  __device__ __forceinline__ void wait() const {
    ptx::mbarrier_wait(full_ + stage_.slot() * 8, stage_.parity());
  }
  __device__ __forceinline__ StageOperands operands() const {
    return first_.template of_stage<Traits>(stage_.slot());
  }
  __device__ __forceinline__ ScaleAddresses scales() const {
    if constexpr (!kScaled) {
      return {};
    } else {
      using Scales = decltype(Storage::scales);
      return {scales_.a + stage_.slot() * Scales::kBytesA,
              scales_.b + stage_.slot() * Scales::kBytesB};
    }
  }
  // Every thread has read the stage's scales.
  __device__ __forceinline__ void hand_back(const ConsumerPlace& place) const {
    if (kScaled ? ptx::first_of_warp() : place.leader()) {
      ptx::mbarrier_arrive(empty_ + stage_.slot() * 8);
    }
  }

 private:
  static constexpr bool kScaled = scales_stages(Traits::kPromotion);
  StageOperands first_;
  uint32_t full_;
  uint32_t empty_;
  ScaleAddresses scales_;
  Cursor<Traits::kStages>& stage_;
};

// A tile of kN tokens (or columns) in two parts: while the sums of the front are added, the
// products of the back run. What is added behind them is hidden by the other warpgroup's products
// alone, so the back is the smaller part. No products may be under way from one stage to the next:
// the compiler would let them wait for each other (C7514).
template <int kN, typename Traits, typename Storage>
__device__ __forceinline__ void multiply_parts(Storage& shared, const ConsumerPlace& place,
                                               int count, Cursor<Traits::kStages>& stage,
                                               Accumulators<Traits>& totals) {
  using Front = TokenPart<0, (2 * kN / kTokenStep + 1) / 3 * kTokenStep>;
  using Back = TokenPart<Front::kTokens, kN - Front::kTokens>;
  constexpr bool kTwo = Back::kTokens > 0;
  const StageInWork<Traits, Storage> current(shared, place, stage);
  for (int left = count; left > 0; --left) {
    float front[Front::kTokens / 2];
    float back[kTwo ? Back::kTokens / 2 : 1];
    current.wait();
    issue_part<Traits, Front>(front, current.operands());
    if constexpr (kTwo) {
      issue_part<Traits, Back>(back, current.operands());
      ptx::wgmma_wait<1>();
      promote<Traits, Front>(totals, front, current.scales());
      ptx::wgmma_wait<0>();
      promote<Traits, Back>(totals, back, current.scales());
    } else {
      ptx::wgmma_wait<0>();
      promote<Traits, Front>(totals, front, current.scales());
    }
    current.hand_back(place);
    stage.advance();
  }
}

// A warpgroup whose block of a tile lies beyond the matrix: the stages pass by.
template <typename Traits, typename Storage>
__device__ __forceinline__ void pass_stages(Storage& shared, const ConsumerPlace& place, int count,
                                            Cursor<Traits::kStages>& stage) {
  const StageInWork<Traits, Storage> current(shared, place, stage);
  for (int left = count; left > 0; --left) {
    current.wait();
    current.hand_back(place);
    stage.advance();
  }
}

// As multiply(): the totals are complete and every stage has been handed back on return. Without
// blocks they are zero. A last stage that isn't full is zeros past k, which change no total: there
// is no -0 among them.
template <typename Traits, typename Storage>
__device__ __forceinline__ void multiply_promoted(Storage& shared, const ConsumerPlace& place,
                                                  int count, int width,
                                                  Cursor<Traits::kStages>& stage,
                                                  Accumulators<Traits>& totals) {
  static_assert(Traits::kSteps == 4 && Traits::kBlocks == 1);
#pragma unroll
  for (float& total : totals[0]) total = 0.0f;
  if (count == 0) return;
  with_width<Traits>(
      width, [&]<int kN>() { multiply_parts<kN, Traits>(shared, place, count, stage, totals); });
}

}  // namespace cadre::sm90
