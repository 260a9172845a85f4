// The portable tensor-core kernel: cp.async into a ring of stages, ldmatrix, mma.sync, one
// accumulator over ascending steps of K (so that its bits equal those of any other kernel that does
// the same). 64x64 outputs a warp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/tile_loads.cuh"
#include "cuda/sm80/zero_rows.cuh"

namespace cadre::sm80 {

/// kAKMajor: consecutive elements of A lie along K; kBKMajor likewise. int8 is K-major alone
/// (ldmatrix can't transpose bytes); other layouts of it go through single-element loads.
template <typename Element_, bool kAKMajor_, bool kBKMajor_, int kTileN_>
struct MmaTraits {
  using Element = Element_;
  using Acc = std::conditional_t<std::is_same_v<Element, int8_t>, int32_t, float>;
  static constexpr bool kAKMajor = kAKMajor_;
  static constexpr bool kBKMajor = kBKMajor_;
  static constexpr int kTileM = 128;
  static constexpr int kTileN = kTileN_;
  static constexpr int kStages = 4;
  static constexpr int kWarps = (kTileM / 64) * (kTileN / 64);
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocksOfSm = kTileN == 128 ? 2 : 1;
  static constexpr int kBlockElements = kBlockBytes / static_cast<int>(sizeof(Element));
  static constexpr int kStepElements = kBlockElements / 2;  ///< of one mma: 16, or 32 for int8
  using LoaderA = OperandLoader<Element, kAKMajor, kTileM, kThreads>;
  using LoaderB = OperandLoader<Element, kBKMajor, kTileN, kThreads>;
  static constexpr int kStageBytes = LoaderA::kStageBytes + LoaderB::kStageBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kWarps * kStripBytes;
};

/// Fragments of one step of K for a warp's 64x64 outputs.
struct Fragments {
  uint32_t a[4][4];  ///< four m16
  uint32_t b[4][4];  ///< four pairs of n8: [pair][2 * n8 + half of K]
};

/// Where a lane points ldmatrix, in bytes from a stage's operand; made once.
template <typename Traits>
struct FragmentPlace {
  uint32_t a[2];  ///< for the two steps of a block
  uint32_t b[2];

  __device__ __forceinline__ FragmentPlace(int warp_m, int warp_n) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      // Matrices of A: (rows 0-7, K low), (rows 8-15, K low), (rows 0-7, K high), (rows 8-15, K
      // high).
      a[step] =
          Traits::kAKMajor
              ? chunk_offset<true, Traits::kTileM>(warp_m * 64 + lane % 16, step * 2 + lane / 16)
              : chunk_offset<false, Traits::kTileM>(step * 16 + lane / 16 * 8 + lane % 8,
                                                    warp_m * 8 + lane / 8 % 2);
      // Matrices of B: (n8 first, K low), (first, K high), (second, K low), (second, K high).
      b[step] = Traits::kBKMajor
                    ? chunk_offset<true, Traits::kTileN>(warp_n * 64 + lane / 16 * 8 + lane % 8,
                                                         step * 2 + lane / 8 % 2)
                    : chunk_offset<false, Traits::kTileN>(step * 16 + lane / 8 % 2 * 8 + lane % 8,
                                                          warp_n * 8 + lane / 16);
    }
  }

  /// `stage` is the shared address of A's tile; B's follows.
  __device__ __forceinline__ void load(Fragments& f, uint32_t stage, int step) const {
    const uint32_t base_a = stage + (step == 0 ? a[0] : a[1]);
    const uint32_t base_b = stage + Traits::LoaderA::kStageBytes + (step == 0 ? b[0] : b[1]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // 16 rows on; or two chunks on, where bits 5 and 6 of the address take part in the swizzle.
      if constexpr (Traits::kAKMajor) {
        ptx::load_matrices(f.a[i], base_a + i * 16 * kBlockBytes);
      } else {
        ptx::load_matrices_transposed(f.a[i], base_a ^ (i << 5));
      }
      if constexpr (Traits::kBKMajor) {
        ptx::load_matrices(f.b[i], base_b + i * 16 * kBlockBytes);
      } else {
        ptx::load_matrices_transposed(f.b[i], base_b ^ (i << 5));
      }
    }
  }
};

template <typename Traits>
__device__ __forceinline__ void multiply(typename Traits::Acc (&acc)[4][8][4], const Fragments& f) {
#pragma unroll
  for (int mi = 0; mi < 4; ++mi) {
#pragma unroll
    for (int ni = 0; ni < 8; ++ni) {
      const uint32_t b0 = f.b[ni / 2][ni % 2 * 2];
      const uint32_t b1 = f.b[ni / 2][ni % 2 * 2 + 1];
      if constexpr (std::is_same_v<typename Traits::Element, int8_t>) {
        ptx::mma_int8(acc[mi][ni], f.a[mi], b0, b1);
      } else {
        ptx::mma_16bit<typename Traits::Element>(acc[mi][ni], f.a[mi], b0, b1);
      }
    }
  }
}

/// All blocks of K of one tile, whose first loads are under way. Fragments of a step are read while
/// the one before it is multiplied; the last step of K is left out when it holds nothing (adding
/// zeros would turn -0 into 0).
template <typename Traits>
__device__ __forceinline__ void multiply_tile(typename Traits::Acc (&acc)[4][8][4],
                                              const ProductArguments& args, const ProductTile& tile,
                                              uint32_t stages, const FragmentPlace<Traits>& place,
                                              TileLoads<Traits>& loads) {
  const int64_t k = args.table.entries[tile.group].k;
  int blocks = static_cast<int>((k + Traits::kBlockElements - 1) / Traits::kBlockElements);
  if (blocks == 0) return;
  const bool odd = k - int64_t{blocks - 1} * Traits::kBlockElements <= Traits::kStepElements;
  Fragments f[2];
  uint32_t slot = 0;
  ptx::cp_async_wait<Traits::kStages - 2>();
  __syncthreads();
  place.load(f[0], stages, 0);
#pragma unroll 1
  for (; blocks > 0; --blocks) {
    place.load(f[1], stages + slot * Traits::kStageBytes, 1);
    multiply<Traits>(acc, f[0]);
    loads.next();  // into the stage of the block before this one, which all warps have left
    slot = slot == Traits::kStages - 1 ? 0 : slot + 1;
    ptx::cp_async_wait<Traits::kStages - 2>();
    __syncthreads();
    if (blocks > 1) {
      place.load(f[0], stages + slot * Traits::kStageBytes, 0);
    } else if (odd) {
      break;
    }
    multiply<Traits>(acc, f[1]);
  }
}

/// The same for operands whose strides or alignment keep cp.async away: one stage, element by
/// element.
template <typename Traits>
__device__ __forceinline__ void multiply_tile_by_elements(typename Traits::Acc (&acc)[4][8][4],
                                                          const ProductArguments& args,
                                                          const ProductTile& tile, uint32_t stages,
                                                          const FragmentPlace<Traits>& place,
                                                          const TileLoads<Traits>& loads) {
  const int64_t k = args.table.entries[tile.group].k;
#pragma unroll 1
  for (int64_t begin = 0; begin < k; begin += Traits::kBlockElements) {
    __syncthreads();  // all warps have left the stage
    loads.load_block(args, tile, begin);
    __syncthreads();
#pragma unroll 1
    for (int step = 0; step < 2 && begin + step * Traits::kStepElements < k; ++step) {
      Fragments f;
      place.load(f, stages, step);
      multiply<Traits>(acc, f);
    }
  }
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksOfSm)
    mma_kernel(const __grid_constant__ ProductArguments args) {
  using Acc = typename Traits::Acc;
  extern __shared__ __align__(128) char shared[];
  const uint32_t stages = ptx::shared_address(shared);
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  const int warp_m = warp % 2;
  const int warp_n = warp / 2;

  const FragmentPlace<Traits> place(warp_m, warp_n);
  TileLoads<Traits> loads(stages);
  ProductTile tile;
  int64_t index = blockIdx.x;
  bool more = find_tile<Traits::kTileM, Traits::kTileN>(args, index, &tile);
  bool vectors = more && TileLoads<Traits>::vectors(args, tile);
  if (vectors) loads.start(args, tile);
  while (more) {
    Acc acc[4][8][4] = {};
    if (vectors) {
      multiply_tile<Traits>(acc, args, tile, stages, place, loads);
    } else {
      multiply_tile_by_elements<Traits>(acc, args, tile, stages, place, loads);
    }
    // The next tile's first blocks arrive while this one's results leave. The barrier: all warps
    // have left the stages.
    const ProductTile done = tile;
    index += gridDim.x;
    more = find_tile<Traits::kTileM, Traits::kTileN>(args, index, &tile);
    ptx::cp_async_wait<0>();
    __syncthreads();
    vectors = more && TileLoads<Traits>::vectors(args, tile);
    if (vectors) loads.start(args, tile);
    Acc* strip =
        reinterpret_cast<Acc*>(shared + Traits::kStages * Traits::kStageBytes + warp * kStripBytes);
    store_warp_tile<Acc>(args, args.table.entries[done.group],
                         int64_t{done.row_tile} * Traits::kTileM + warp_m * 64,
                         int64_t{done.col_tile} * Traits::kTileN + warp_n * 64, acc, strip);
  }
  zero_uncovered_rows(args);
}

}  // namespace cadre::sm80
