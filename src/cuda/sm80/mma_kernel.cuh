// The portable tensor-core kernel: cp.async into a ring of stages, ldmatrix, mma.sync, one
// accumulator over ascending steps of K (so that its bits equal those of any other kernel that does
// the same). 64x64 outputs a warp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/mma_shape.h"
#include "cuda/sm80/plain_epilogue.cuh"
#include "cuda/sm80/tile_loads.cuh"
#include "cuda/sm80/zero_rows.cuh"

namespace cadre::sm80 {

/// kAKMajor: consecutive elements of A lie along K; kBKMajor likewise. int8 is K-major alone
/// (ldmatrix can't transpose bytes); other layouts of it go through single-element loads.
template <typename Element_, bool kAKMajor_, bool kBKMajor_, typename Shape>
struct MmaTraits : Shape {
  using Element = Element_;
  using Acc = std::conditional_t<std::is_same_v<Element, int8_t>, int32_t, float>;
  static constexpr bool kAKMajor = kAKMajor_;
  static constexpr bool kBKMajor = kBKMajor_;
  static constexpr int kBlockElements = Shape::kBlockBytes / static_cast<int>(sizeof(Element));
  /// One mma takes 32 bytes of K: 16 elements, or 32 of int8.
  static constexpr int kSteps = Shape::kBlockBytes / 32;
  static constexpr int kStepElements = kBlockElements / kSteps;
  using LoaderA =
      OperandLoader<Element, kAKMajor, Shape::kTileM, Shape::kBlockBytes, Shape::kThreads>;
  using LoaderB =
      OperandLoader<Element, kBKMajor, Shape::kTileN, Shape::kBlockBytes, Shape::kThreads>;
  static constexpr int kStageBytesA = LoaderA::kStageBytes;
};

/// Fragments of one step of K for a warp's 64x64 outputs.
struct Fragments {
  uint32_t a[4][4];  ///< four m16
  uint32_t b[4][4];  ///< four pairs of n8: [pair][2 * n8 + half of K]
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
            ? chunk_offset<true, Traits::kTileM, kBytes>(warp_m * 64 + lane % 16, lane / 16)
            : chunk_offset<false, Traits::kTileM, kBytes>(lane / 16 * 8 + lane % 8,
                                                          warp_m * 8 + lane / 8 % 2);
    // Matrices of B: (n8 first, K low), (first, K high), (second, K low), (second, K high).
    b = Traits::kBKMajor ? chunk_offset<true, Traits::kTileN, kBytes>(
                               warp_n * 64 + lane / 16 * 8 + lane % 8, lane / 8 % 2)
                         : chunk_offset<false, Traits::kTileN, kBytes>(lane / 8 % 2 * 8 + lane % 8,
                                                                       warp_n * 8 + lane / 16);
    b += Traits::kStageBytesA;
  }

  /// Two chunks on along K (K-major) or along M and N flip bits 5 and 6 of the address, which take
  /// part in the swizzle; stages start at multiples of 128 bytes.
  __device__ __forceinline__ void load(Fragments& f, uint32_t stage, int step) const {
    constexpr uint32_t kRows = 16 * Traits::kBlockBytes;  // 16 rows of a K-major operand
    const uint32_t base_a =
        Traits::kAKMajor ? (stage + a) ^ (step << 5) : stage + a + step * 16 * Traits::kTileM * 2;
    const uint32_t base_b =
        Traits::kBKMajor ? (stage + b) ^ (step << 5) : stage + b + step * 16 * Traits::kTileN * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (Traits::kAKMajor) {
        ptx::load_matrices(f.a[i], base_a + i * kRows);
      } else {
        ptx::load_matrices_transposed(f.a[i], base_a ^ (i << 5));
      }
      if constexpr (Traits::kBKMajor) {
        ptx::load_matrices(f.b[i], base_b + i * kRows);
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

/// Blocks of K of a tile.
template <typename Traits>
__device__ __forceinline__ int blocks_of(const ProductArguments& args, const ProductTile& tile) {
  const int64_t k = args.table.entries[tile.group].k;
  return static_cast<int>((k + Traits::kBlockElements - 1) / Traits::kBlockElements);
}

/// The tile after this one, and how its loads begin.
struct NextTile {
  ProductTile tile;
  bool exists;
  bool vectors;  ///< it comes 16 bytes at a time
  bool streams;  ///< its first blocks are loaded behind this tile's last ones, without a pause
};

/// All blocks of K of one tile, whose first loads are under way; `slot` is the stage of its first
/// block, and becomes that of the block behind its last one. Fragments of a step are read while the
/// one before it is multiplied; steps that hold nothing are left out (adding zeros would turn -0
/// into 0).
template <typename Traits>
__device__ __forceinline__ void multiply_tile(typename Traits::Acc (&acc)[4][8][4],
                                              const ProductArguments& args, const ProductTile& tile,
                                              const NextTile& next, uint32_t stages,
                                              const FragmentPlace<Traits>& place, bool active,
                                              uint32_t& slot, TileLoads<Traits>& loads) {
  int blocks = blocks_of<Traits>(args, tile);
  if (blocks == 0) return;
  const int64_t k = args.table.entries[tile.group].k;
  const int last_elements = static_cast<int>(k - int64_t{blocks - 1} * Traits::kBlockElements);
  const int last_steps = (last_elements + Traits::kStepElements - 1) / Traits::kStepElements;
  Fragments f[2];
  ptx::cp_async_wait<Traits::kStages - 2>();
  __syncthreads();
  place.load(f[0], stages + slot * Traits::kStageBytes, 0);
#pragma unroll 1
  for (; blocks > 0; --blocks) {
#pragma unroll
    for (int step = 0; step < Traits::kSteps; ++step) {
      if (step + 1 < Traits::kSteps) {
        place.load(f[(step + 1) % 2], stages + slot * Traits::kStageBytes, step + 1);
      } else {
        slot = slot == Traits::kStages - 1 ? 0 : slot + 1;
        ptx::cp_async_wait<Traits::kStages - 2>();
        __syncthreads();
        if (blocks > 1) place.load(f[0], stages + slot * Traits::kStageBytes, 0);
      }
      if (active && (blocks > 1 || step < last_steps)) multiply<Traits>(acc, f[step % 2]);
      // Into the stage of the block before this one, which all warps have left.
      if (step == 0) {
        if (next.streams && loads.finished()) loads.begin(args, next.tile);
        loads.load_a();
        if (Traits::kSteps == 2) loads.load_b();
      }
      if (step == 1 && Traits::kSteps > 2) loads.load_b();
    }
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
    for (int step = 0; step < Traits::kSteps && begin + step * Traits::kStepElements < k; ++step) {
      Fragments f;
      place.load(f, stages, step);
      multiply<Traits>(acc, f);
    }
  }
}

template <typename Traits>
__device__ __forceinline__ void store_results(const ProductArguments& args, const ProductTile& tile,
                                              int warp, char* shared,
                                              const typename Traits::Acc (&acc)[4][8][4]) {
  using Acc = typename Traits::Acc;
  const GroupEntry& entry = args.table.entries[tile.group];
  const int64_t row = int64_t{tile.row_tile} * Traits::kTileM + warp % 2 * 64;
  const int64_t col = int64_t{tile.col_tile} * Traits::kTileN + warp / 2 * 64;
  if constexpr (std::is_same_v<Acc, float>) {
    if (is_plain<typename Traits::Element>(args, entry)) {
      store_plain_tile<typename Traits::Element>(entry, row, col, acc);
      return;
    }
  }
  char* strips = shared + Traits::kStages * Traits::kStageBytes;
  store_warp_tile<Acc>(args, entry, row, col, acc,
                       reinterpret_cast<Acc*>(strips + warp * kStripBytes));
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
  int index = static_cast<int>(blockIdx.x);
  bool more = find_tile(args, index, &tile);
  bool vectors = more && TileLoads<Traits>::vectors(args, tile);
  uint32_t slot = 0;
  if (vectors) loads.start(args, tile);
  while (more) {
    // The next tile is looked up while this one's first blocks are on their way.
    NextTile next{.tile = tile};
    index += static_cast<int>(gridDim.x);
    next.exists = find_tile(args, index, &next.tile);
    next.vectors = next.exists && TileLoads<Traits>::vectors(args, next.tile);
    // The ring stays in step only when both tiles fill it.
    next.streams = vectors && next.vectors &&
                   blocks_of<Traits>(args, tile) >= Traits::kStages - 1 &&
                   blocks_of<Traits>(args, next.tile) >= Traits::kStages - 1;
    // A warp whose rows all lie behind the group's last one only helps to load.
    const int64_t first_row = int64_t{tile.row_tile} * Traits::kTileM + warp % 2 * 64;
    const bool active = first_row < args.table.entries[tile.group].m;
    Acc acc[4][8][4] = {};
    if (vectors) {
      multiply_tile<Traits>(acc, args, tile, next, stages, place, active, slot, loads);
    } else {
      multiply_tile_by_elements<Traits>(acc, args, tile, stages, place, loads);
    }
    if (!next.streams) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // all warps have left the stages
      slot = 0;
      if (next.vectors) loads.start(args, next.tile);
    }
    // The next tile's first blocks arrive while this one's results leave.
    store_results<Traits>(args, tile, warp, shared, acc);
    tile = next.tile;
    more = next.exists;
    vectors = next.vectors;
  }
  zero_uncovered_rows(args);
}

}  // namespace cadre::sm80
