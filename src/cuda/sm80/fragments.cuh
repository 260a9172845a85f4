// A warp's operands of one step of K in registers: where ldmatrix finds them in a stage, and the
// products of a 64x64 tile.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm80/operand_loader.cuh"

namespace cadre::sm80 {

/// Fragments of one step of K for a warp's 64x64 outputs.
struct Fragments {
  uint32_t a[4][4];  ///< four m16
  uint32_t b[4][4];  ///< four pairs of n8: [pair][2 * n8 + half of K]

  static constexpr int kLoads = 8;
};

/// Where a lane points ldmatrix in the first step of a block, in bytes from a stage.
template <typename Traits>
struct FragmentPlace {
  uint32_t a;
  uint32_t b;

  __device__ __forceinline__ FragmentPlace(int warp_m, int warp_n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    constexpr int kBytes = Traits::kBlockBytes;
    // Matrices of A: (rows 0-7, K low), (rows 8-15, K low), (rows 0-7, K high), (8-15, K high).
    a = Traits::kAKMajor
            ? vector_offset<true, Traits::kTileM, kBytes>(warp_m * 64 + lane % 16, lane / 16)
            : vector_offset<false, Traits::kTileM, kBytes>(lane / 16 * 8 + lane % 8,
                                                           warp_m * 8 + lane / 8 % 2);
    // Matrices of B: (n8 first, K low), (first, K high), (second, K low), (second, K high).
    b = Traits::kBKMajor ? vector_offset<true, Traits::kTileN, kBytes>(
                               warp_n * 64 + lane / 16 * 8 + lane % 8, lane / 8 % 2)
                         : vector_offset<false, Traits::kTileN, kBytes>(lane / 8 % 2 * 8 + lane % 8,
                                                                        warp_n * 8 + lane / 16);
    b += Traits::kStageBytesA;
  }

  /// One of Fragments::kLoads: a0 b0 b1 a1 b2 a2 b3 a3. Two vectors on along K (K-major) or along M
  /// and N flip bits 5 and 6 of the address, which take part in the swizzle; stages start at
  /// multiples of 128 bytes.
  __device__ __forceinline__ void load_one(Fragments& f, uint32_t stage, int step, int i) const {
    constexpr uint32_t kRows = 16 * Traits::kBlockBytes;  // 16 rows of a K-major operand
    const int which = i / 2;
    if (i == 0 || (i % 2 == 1 && i != 1)) {
      if constexpr (Traits::kAKMajor) {
        ptx::load_matrices(f.a[which], ((stage + a) ^ (step << 5)) + which * kRows);
      } else {
        ptx::load_matrices_transposed(f.a[which],
                                      (stage + a + step * 16 * Traits::kTileM * 2) ^ (which << 5));
      }
    } else {
      if constexpr (Traits::kBKMajor) {
        ptx::load_matrices(f.b[which], ((stage + b) ^ (step << 5)) + which * kRows);
      } else {
        ptx::load_matrices_transposed(f.b[which],
                                      (stage + b + step * 16 * Traits::kTileN * 2) ^ (which << 5));
      }
    }
  }

  __device__ __forceinline__ void load(Fragments& f, uint32_t stage, int step) const {
#pragma unroll
    for (int i = 0; i < Fragments::kLoads; ++i) load_one(f, stage, step, i);
  }
};

/// Products of a warp in one step of K: 16x8 outputs each.
inline constexpr int kProducts = 32;

/// Product i: rows of 16 one after the other, each over all its columns.
template <typename Traits>
__device__ __forceinline__ void multiply_one(typename Traits::Acc (&acc)[4][8][4],
                                             const Fragments& f, int i) {
  const int mi = i / 8;
  const int ni = i % 8;
  const uint32_t b0 = f.b[ni / 2][ni % 2 * 2];
  const uint32_t b1 = f.b[ni / 2][ni % 2 * 2 + 1];
  if constexpr (std::is_same_v<typename Traits::Element, int8_t>) {
    ptx::mma_int8(acc[mi][ni], f.a[mi], b0, b1);
  } else {
    ptx::mma_16bit<typename Traits::Element>(acc[mi][ni], f.a[mi], b0, b1);
  }
}

template <typename Traits>
__device__ __forceinline__ void multiply(typename Traits::Acc (&acc)[4][8][4], const Fragments& f) {
#pragma unroll
  for (int i = 0; i < kProducts; ++i) multiply_one<Traits>(acc, f, i);
}

}  // namespace cadre::sm80
