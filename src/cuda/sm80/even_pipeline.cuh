// The products of a block of K for at most 80x64 outputs a warp, in slices of 16 rows. The
// fragments of B come a step ahead, those of A two slices.
#pragma once

#include <cstdint>

#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm80/block_loop.cuh"
#include "cuda/sm80/even_loads.cuh"

namespace cadre::sm80 {

/// Between blocks b_[0] holds the columns of the first step of the block at ring.slot, and a_ its
/// first slices.
template <typename T, bool kAKMajor, bool kBKMajor>
class EvenPipeline {
  using Shape = EvenShape;
  using Loads = EvenLoads<kAKMajor, kBKMajor>;
  static constexpr int kSteps = Shape::kBlockElements / 16;
  static constexpr int kSliceProducts = 8;
  static constexpr int kPairs = 4;  ///< of n8

  /// Slices that A's fragments are ahead; and a step's last so many slices bring the next one's B,
  /// behind the barrier in a block's last step.
  static constexpr int ahead(int slices) { return slices > 1 ? 2 : 1; }

 public:
  using Sums = float[Shape::kSlices][8][4];

  /// The warp's slices of rows are every second one of the tile's.
  __device__ __forceinline__ EvenPipeline(int warp_m, int warp_n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    // Matrices of A: (rows 0-7, K low), (rows 8-15, K low), (rows 0-7, K high), (8-15, K high).
    place_a_ =
        kAKMajor ? vector_offset<true, 0, 128>(warp_m * 16 + lane % 16, lane / 16)
                 : vector_offset<true, 0, 128>(lane / 16 * 8 + lane % 8, warp_m * 2 + lane / 8 % 2);
    // Matrices of B: (n8 first, K low), (first, K high), (second, K low), (second, K high).
    place_b_ = (Shape::kSquaresA + warp_n) * Shape::kSquareBytes +
               (kBKMajor ? vector_offset<true, 0, 128>(lane / 16 * 8 + lane % 8, lane / 8 % 2)
                         : vector_offset<true, 0, 128>(lane / 8 % 2 * 8 + lane % 8, lane / 16));
  }

  template <int kSlices>
  __device__ __forceinline__ void begin(uint32_t stage) {
#pragma unroll
    for (int at = 0; at < ahead(kSlices); ++at) load_a<kSlices>(stage, at);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) load_b(stage, 0, pair);
  }

  /// A whole block of kSlices slices, without a branch. The stage is left when the fragments of its
  /// last slices are in registers.
  template <int kSlices>
  __device__ __forceinline__ void block(Sums& sums, Ring<Shape>& ring, Loads& loads) {
    constexpr int kLeave = kSteps * kSlices - ahead(kSlices);
    // Vectors that are loaded together, and the products between two batches. Behind ldmatrix the
    // compiler lets three slots pass before each batch; the weight gradient, measured, wants them
    // evenly spread nevertheless.
    constexpr int kBatch = kSlices == 1 ? 1 : kAKMajor ? 4 : 2;
    constexpr int kBetween = kLeave * kSliceProducts / ((Loads::kVectors + kBatch - 1) / kBatch);
#pragma unroll
    for (int at = 0; at < kSteps * kSlices; ++at) {
      if (at == kLeave) {
        loads.commit();
        ring.next();
      }
      slice<kSlices>(sums, ring.stage(), at, [&](int ni) {
        const int product = at * kSliceProducts + ni;
        if (at >= kLeave || product % kBetween != kBetween / 2) return;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          const int vector = product / kBetween * kBatch + i;
          if (vector < Loads::kVectors) loads.load_vector(ring.free_stage(), vector);
        }
      });
    }
  }

  /// The rest of K, less than a block. Steps that hold nothing are left out: adding zeros would
  /// turn -0 into 0.
  template <int kSlices>
  __device__ __forceinline__ void part_block(Sums& sums, int steps, Ring<Shape>& ring,
                                             Loads& loads) {
    loads.load_block(ring.free_stage());
    loads.commit();
#pragma unroll
    for (int step = 0; step < kSteps - 1; ++step) {
      if (step < steps) {
#pragma unroll
        for (int i = 0; i < kSlices; ++i) {
          slice<kSlices>(sums, ring.stage(), step * kSlices + i, [](int) {});
        }
      }
    }
    ring.next();
  }

 private:
  /// Slice `at`, counted over the steps of the block in `stage` and on into the next one.
  template <int kSlices>
  __device__ __forceinline__ void load_a(uint32_t stage, int at) {
    uint32_t(&r)[4] = a_[at % 4];
    const int step = at / kSlices % kSteps;
    const int slice = at % kSlices;
    if constexpr (kAKMajor) {
      ptx::load_matrices(r, ((stage + place_a_) ^ (step << 5)) + slice * Shape::kSliceRows * 128);
    } else {
      ptx::load_matrices_transposed(r, ((stage + place_a_) ^ (slice % 2 << 6)) +
                                           slice / 2 * Shape::kSquareBytes + step * 16 * 128);
    }
  }
  /// 16 columns of a step.
  __device__ __forceinline__ void load_b(uint32_t stage, int step, int pair) {
    uint32_t(&r)[4] = b_[step % 2][pair];
    if constexpr (kBKMajor) {
      ptx::load_matrices(r, ((stage + place_b_) ^ (step << 5)) + pair * 16 * 128);
    } else {
      ptx::load_matrices_transposed(r, ((stage + place_b_) ^ (pair << 5)) + step * 16 * 128);
    }
  }

  /// Products of slice `at` of a block, counted over its steps, and the loads of what follows it.
  template <int kSlices, typename Between>
  __device__ __forceinline__ void slice(Sums& sums, uint32_t stage, int at, Between between) {
    constexpr int kAhead = ahead(kSlices);
    constexpr int kProductsOfPair = kSliceProducts * kAhead / kPairs;
    const int step = at / kSlices;
    const int behind = at % kSlices - (kSlices - kAhead);  // negative: B isn't loaded yet
    load_a<kSlices>(stage, at + kAhead);
#pragma unroll
    for (int ni = 0; ni < kSliceProducts; ++ni) {
      between(ni);
      if (behind >= 0 && ni % kProductsOfPair == kProductsOfPair / 2) {
        load_b(stage, (step + 1) % kSteps, (behind * kSliceProducts + ni) / kProductsOfPair);
      }
      const uint32_t(&b)[4] = b_[step % 2][ni / 2];
      ptx::mma_16bit<T>(sums[at % kSlices][ni], a_[at % 4], b[ni % 2 * 2], b[ni % 2 * 2 + 1]);
    }
  }

  uint32_t place_a_;  ///< of the lane's first row of ldmatrix in a stage
  uint32_t place_b_;
  uint32_t a_[4][4];
  uint32_t b_[2][kPairs][4];  ///< of even and odd steps: [pair][2 * n8 + half of K]
};

}  // namespace cadre::sm80
