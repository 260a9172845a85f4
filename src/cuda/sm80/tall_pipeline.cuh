// The products of a block of K for 96x64 outputs a warp. The sums leave no room for the fragments
// of two steps: those of A come a slice of 16 rows ahead, and those of B are replaced behind their
// last use in a step.
#pragma once

#include <cstdint>

#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm80/block_loop.cuh"
#include "cuda/sm80/tall_loads.cuh"

namespace cadre::sm80 {

/// Between blocks a[0] and b hold the first slice and all columns of the first step of the block at
/// ring.slot.
template <typename T>
class TallPipeline {
  using Shape = TallShape;
  static constexpr int kSlices = Shape::kSlices;
  static constexpr int kSteps = Shape::kBlockElements / 16;
  static constexpr int kSliceProducts = 8;

 public:
  using Sums = float[kSlices][8][4];

  /// The warp's slices of rows are every second one of the tile's.
  __device__ __forceinline__ TallPipeline(int warp_m, int warp_n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Matrices of A: (rows 0-7, K low), (rows 8-15, K low), (rows 0-7, K high), (8-15, K high).
    place_a_ = chunk_offset<true, 0, 128>(lane / 16 * 8 + lane % 8, warp_m * 2 + lane / 8 % 2);
    // Matrices of B: (n8 first, K low), (first, K high), (second, K low), (second, K high).
    place_b_ = (Shape::kPanelsA + warp_n) * Shape::kPanelBytes +
               chunk_offset<true, 0, 128>(lane / 8 % 2 * 8 + lane % 8, lane / 16);
  }

  __device__ __forceinline__ void begin(uint32_t stage) {
    load_a(a_[0], stage, 0, 0);
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) load_b(stage, 0, pair);
  }

  /// A whole block, without a branch. The stage is left before the last
  /// slice of the last step, whose fragments are in registers by then.
  __device__ __forceinline__ void block(Sums& sums, Ring<Shape>& ring, TallLoads& loads) {
    constexpr int kLast = kSteps * kSlices - 1;
    constexpr int kBatch = 2;  // chunks that are loaded together, between so many products:
    constexpr int kBetween = kLast * kSliceProducts / (TallLoads::kChunks / kBatch);
    static_assert(kLast % 2 == 1, "a_[0] must be free for the next block");
#pragma unroll
    for (int at = 0; at <= kLast; ++at) {
      if (at == kLast) {
        loads.commit();
        ring.next();
      }
      slice(sums, ring.stage(), at, [&](int ni) {
        const int product = at * kSliceProducts + ni;
        if (at == kLast || product % kBetween != kBetween / 2) return;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int chunk = product / kBetween * kBatch + i;
          if (chunk < TallLoads::kChunks) loads.load_chunk(ring.free_stage(), chunk);
        }
      });
    }
  }

  /// The rest of K, less than a block. Steps that hold nothing are left out: adding zeros would
  /// turn -0 into 0.
  __device__ __forceinline__ void part_block(Sums& sums, int steps, Ring<Shape>& ring,
                                             TallLoads& loads) {
    loads.load_block(ring.free_stage());
    loads.commit();
#pragma unroll
    for (int step = 0; step < kSteps - 1; ++step) {
      if (step < steps) {
#pragma unroll
        for (int i = 0; i < kSlices; ++i) {
          slice(sums, ring.stage(), step * kSlices + i, [](int) {});
        }
      }
    }
    ring.next();
  }

 private:
  /// 16 rows. Two chunks on along M and N flip bits 5 and 6 of the address, which take part in the
  /// swizzle.
  __device__ __forceinline__ void load_a(uint32_t (&r)[4], uint32_t stage, int step,
                                         int slice) const {
    ptx::load_matrices_transposed(r, ((stage + place_a_) ^ (slice % 2 << 6)) +
                                         slice / 2 * Shape::kPanelBytes + step * 16 * 128);
  }
  /// 16 columns.
  __device__ __forceinline__ void load_b(uint32_t stage, int step, int pair) {
    ptx::load_matrices_transposed(b_[pair], ((stage + place_b_) ^ (pair << 5)) + step * 16 * 128);
  }

  /// Products of slice `at` of a block, counted over its steps, and the loads of what follows it.
  template <typename Between>
  __device__ __forceinline__ void slice(Sums& sums, uint32_t stage, int at, Between between) {
    const bool last = at % kSlices == kSlices - 1;
    const int next_step = (at + 1) / kSlices % kSteps;
    load_a(a_[(at + 1) % 2], stage, next_step, (at + 1) % kSlices);
#pragma unroll
    for (int ni = 0; ni < kSliceProducts; ++ni) {
      between(ni);
      ptx::mma_16bit<T>(sums[at % kSlices][ni], a_[at % 2], b_[ni / 2][ni % 2 * 2],
                        b_[ni / 2][ni % 2 * 2 + 1]);
      if (last && ni % 2 == 1) load_b(stage, next_step, ni / 2);
    }
  }

  uint32_t place_a_;  ///< of the lane's first row of ldmatrix in a stage
  uint32_t place_b_;
  uint32_t a_[2][4];
  uint32_t b_[4][4];  ///< pairs of n8: [pair][2 * n8 + half of K]
};

}  // namespace cadre::sm80
