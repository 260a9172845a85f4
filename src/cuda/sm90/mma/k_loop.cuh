// The K loop of every Hopper kernel: wgmma over the stages of one tile, one fp32 accumulator for
// each output and ascending k steps, so that a result's bits depend on nothing else.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/wgmma.cuh"
#include "cuda/sm90/mma/operands.cuh"
#include "cuda/sm90/pipeline/cta.cuh"
#include "cuda/sm90/pipeline/cursor.cuh"

namespace cadre::sm90 {

// Low words of the descriptors of a stage's operands; a k step moves each by a fixed distance (in
// 16 bytes).
struct StageOperands {
  uint32_t a;
  uint32_t b;

  template <typename Traits>
  __device__ __forceinline__ StageOperands of_stage(uint32_t slot) const {
    return {a + slot * (Traits::kStageBytes >> 4), b + slot * (Traits::kStageBytes >> 4)};
  }
};

// Those of the first stage for a warpgroup.
template <typename Traits, typename Storage>
__device__ __forceinline__ StageOperands first_operands(Storage& shared,
                                                        const ConsumerPlace& place) {
  const uint32_t stages = ptx::shared_address(shared.stages[0]);
  return {ptx::wgmma_descriptor_low(stages + place.warpgroup * (Traits::kBlocks * kBlockBytes),
                                    leading_bytes(Traits::kMajorA)),
          ptx::wgmma_descriptor_low(stages + Traits::kBytesA, leading_bytes(Traits::kMajorB))};
}

template <int kN, int kBlocks, int kStep, typename Traits>
__device__ __forceinline__ void issue_step(Accumulators<Traits>& acc, const StageOperands& operands,
                                           int accumulate) {
  using A = typename Traits::ElementA;
  using B = typename Traits::ElementB;
  constexpr int kA = kStep * step_bytes(Traits::kMajorA) >> 4;
  constexpr int kB = kStep * step_bytes(Traits::kMajorB) >> 4;
  ptx::wgmma_at<kN, A, B, Traits::kMajorA, Traits::kMajorB, kA, kB>(
      reinterpret_cast<float(&)[kN / 2]>(acc[0]), operands.a, operands.b, accumulate);
  if constexpr (kBlocks == 2) {
    ptx::wgmma_at<kN, A, B, Traits::kMajorA, Traits::kMajorB, kA + (kBlockBytes >> 4), kB>(
        reinterpret_cast<float(&)[kN / 2]>(acc[1]), operands.a, operands.b, accumulate);
  }
}

// kSteps (1, or all 4 of a stage) k steps of kBlocks blocks by a width of kN, as one wgmma group.
// Fence, products and commit stand together: the compiler tracks a group only in straight-line
// code.
template <int kN, int kBlocks, int kSteps, typename Traits>
__device__ __forceinline__ void issue_steps(Accumulators<Traits>& acc,
                                            const StageOperands& operands, int accumulate) {
  if constexpr (kN <= Traits::kWidth) {
    ptx::wgmma_fence();
    issue_step<kN, kBlocks, 0, Traits>(acc, operands, accumulate);
    if constexpr (kSteps == 4) {
      issue_step<kN, kBlocks, 1, Traits>(acc, operands, 1);
      issue_step<kN, kBlocks, 2, Traits>(acc, operands, 1);
      issue_step<kN, kBlocks, 3, Traits>(acc, operands, 1);
    }
    ptx::wgmma_commit();
  }
}

// Calls function<kN>() for the width kN of a tile, one of 16 at most.
template <typename Traits, typename Function>
__device__ __forceinline__ void with_width(int width, const Function& function) {
#define CADRE_WIDTH(i)                                                                            \
  case i:                                                                                         \
    if constexpr (i * kTokenStep <= Traits::kWidth && i * kTokenStep % Traits::kWidthStep == 0) { \
      function.template operator()<i * kTokenStep>();                                             \
    }                                                                                             \
    break;
  switch (width / kTokenStep) {
    CADRE_WIDTH(1)
    CADRE_WIDTH(2)
    CADRE_WIDTH(3)
    CADRE_WIDTH(4)
    CADRE_WIDTH(5)
    CADRE_WIDTH(6)
    CADRE_WIDTH(7)
    CADRE_WIDTH(8)
    CADRE_WIDTH(9)
    CADRE_WIDTH(10)
    CADRE_WIDTH(11)
    CADRE_WIDTH(12)
    CADRE_WIDTH(13)
    CADRE_WIDTH(14)
    CADRE_WIDTH(15)
    CADRE_WIDTH(16)
    default:
      break;
  }
#undef CADRE_WIDTH
}

// gmm: a tile's width picks the instruction.
struct TokenInstruction {
  int width;

  template <int kSteps, typename Traits>
  __device__ __forceinline__ void issue(Accumulators<Traits>& acc, const StageOperands& operands,
                                        int accumulate) const {
    with_width<Traits>(width, [&]<int kN>() {
      issue_steps<kN, Traits::kBlocks, kSteps, Traits>(acc, operands, accumulate);
    });
  }
};

// tgmm: whole tiles, and narrower ones at the edge of out.
struct AtomInstruction {
  int atoms_a;  // of 64, at least 1
  int atoms_b;

  template <int kSteps, typename Traits>
  __device__ __forceinline__ void issue(Accumulators<Traits>& acc, const StageOperands& operands,
                                        int accumulate) const {
    if (atoms_b == Traits::kAtomsB) {
      if (atoms_a == 2) {
        issue_steps<Traits::kWidth, 2, kSteps, Traits>(acc, operands, accumulate);
      } else {
        issue_steps<Traits::kWidth, 1, kSteps, Traits>(acc, operands, accumulate);
      }
    } else if (atoms_b == 1) {
      issue_steps<64, 2, kSteps, Traits>(acc, operands, accumulate);
    } else {
      issue_steps<128, 2, kSteps, Traits>(acc, operands, accumulate);
    }
  }
};

// The stages of a sum of k terms. A last stage that isn't full issues only the steps that hold
// something (an extra one, 0 * 0, would turn -0 into +0); with all of its steps it counts as full.
template <typename Traits>
struct KBlocks {
  int full;
  int rest_steps;

  __device__ __forceinline__ explicit KBlocks(int k)
      : full((k + Traits::kStepK - 1) / Traits::kTileK),
        rest_steps((k + Traits::kStepK - 1) % Traits::kTileK / Traits::kStepK) {}

  __device__ __forceinline__ int count() const { return full + (rest_steps > 0); }
};

// All of K for one tile, or nothing if it has no blocks (the sums aren't set to zero then: the
// compiler would make that a select for each of them in every tile). `between(block)` runs while a
// block's products do, `issued()` once all products have been issued; on return the sums are
// complete and every stage has been handed back.
template <typename Traits, typename Storage, typename Instruction, typename Between,
          typename Issued>
__device__ __forceinline__ void multiply(Storage& shared, const ConsumerPlace& place,
                                         const KBlocks<Traits>& blocks,
                                         const Instruction& instruction,
                                         Cursor<Traits::kStages>& stage, Accumulators<Traits>& acc,
                                         Between between, Issued issued) {
  static_assert(Traits::kSteps == 4);
  const int count = blocks.count();
  const auto first = first_operands<Traits>(shared, place);
  const uint32_t stage_empty = ptx::shared_address(shared.stage_empty);
  const uint32_t stage_full = ptx::shared_address(shared.stage_full);
  for (int block = 0; block < count; ++block) {
    StageOperands operands = first.template of_stage<Traits>(stage.slot());
    ptx::mbarrier_wait(stage_full + stage.slot() * 8, stage.parity());
    if (block < blocks.full) {
      instruction.template issue<4, Traits>(acc, operands, block > 0);
    } else {
      for (int step = 0; step < blocks.rest_steps; ++step) {
        instruction.template issue<1, Traits>(acc, operands, block + step > 0);
        operands.a += step_bytes(Traits::kMajorA) >> 4;
        operands.b += step_bytes(Traits::kMajorB) >> 4;
      }
    }
    // One stage's products stay in flight. A short last stage is several groups, so it waits for
    // all but its own last step.
    ptx::wgmma_wait<1>();
    if (block > 0 && place.leader()) ptx::mbarrier_arrive(stage_empty + stage.previous_slot() * 8);
    between(block);
    stage.advance();
  }
  issued();
  ptx::wgmma_wait<0>();
  if (count > 0 && place.leader()) ptx::mbarrier_arrive(stage_empty + stage.previous_slot() * 8);
}

}  // namespace cadre::sm90
