// The portable tensor-core kernel: cp.async into a ring of stages, ldmatrix, mma.sync, one
// accumulator over ascending steps of K (so that its bits equal those of any other kernel that does
// the same). 64x64 outputs a warp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/address.cuh"
#include "cuda/sm80/block_loop.cuh"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/mma_shape.h"
#include "cuda/sm80/plain_epilogue.cuh"
#include "cuda/sm80/tile_loads.cuh"
#include "cuda/sm80/zero_rows.cuh"

namespace cadre::sm80 {

/// kAKMajor: consecutive elements of A lie along K; kBKMajor likewise. int8 is K-major alone
/// (ldmatrix can't transpose bytes); other layouts of it go through single-element loads.
/// kByIndex: rows of A by index are K-major; those along K are never so in memory, so of int8 there
/// are single elements alone.
template <typename Element_, bool kAKMajor_, bool kBKMajor_, typename Shape,
          ByIndex kByIndex_ = ByIndex::kNone>
struct MmaTraits : Shape {
  using Element = Element_;
  using Acc = std::conditional_t<std::is_same_v<Element, int8_t>, int32_t, float>;
  static constexpr bool kAKMajor = kAKMajor_;
  static constexpr bool kBKMajor = kBKMajor_;
  static constexpr ByIndex kByIndex = kByIndex_;
  static_assert(kAKMajor || kByIndex != ByIndex::kRowsOfA);
  /// Rows along K by index, 16 bytes at a time.
  static constexpr bool kIndexedLines = kByIndex == ByIndex::kRowsAlongK && !kAKMajor && !kBKMajor;
  static constexpr int kBlockElements = Shape::kBlockBytes / static_cast<int>(sizeof(Element));
  /// One mma takes 32 bytes of K: 16 elements, or 32 of int8.
  static constexpr int kSteps = Shape::kBlockBytes / 32;
  static constexpr int kStepElements = kBlockElements / kSteps;
  template <bool kKMajor, int kExtent>
  using Loader = std::conditional_t<
      kIndexedLines, IndexedLines<Element, kExtent, Shape::kBlockBytes, Shape::kThreads>,
      OperandLoader<Element, kKMajor, kExtent, Shape::kBlockBytes, Shape::kThreads>>;
  using LoaderA = std::conditional_t<kByIndex == ByIndex::kRowsOfA,
                                     IndexedLoader<Element, Shape::kTileM, Shape::kBlockBytes,
                                                   Shape::kThreads, Shape::kSharedBytes>,
                                     Loader<kAKMajor, Shape::kTileM>>;
  using LoaderB = Loader<kBKMajor, Shape::kTileN>;
  using Lines = LineRows<LoaderA, LoaderB, kBlockElements, Shape::kThreads, Shape::kSharedBytes>;
  static constexpr int kStageBytesA = LoaderA::kStageBytes;
  static constexpr int kSharedBytes = [] {
    if constexpr (kByIndex == ByIndex::kRowsOfA) return Shape::kSharedBytes + LoaderA::kRowsBytes;
    if constexpr (kIndexedLines) return Shape::kSharedBytes + Lines::kRowsBytes;
    return Shape::kSharedBytes;
  }();
};

/// All blocks of K of a tile whose strides or alignment keep cp.async away: one stage, element by
/// element.
template <typename Traits>
__device__ __forceinline__ void multiply_tile_by_elements(typename Traits::Acc (&acc)[4][8][4],
                                                          const ProductArguments& args,
                                                          const QueuedTile& tile, uint32_t stages,
                                                          const FragmentPlace<Traits>& place) {
  const int64_t k = tile.entry->k;
#pragma unroll 1
  for (int64_t begin = 0; begin < k; begin += Traits::kBlockElements) {
    __syncthreads();  // all warps have left the stage
    TileLoads<Traits>::load_elements(args, tile, stages, begin);
    __syncthreads();
#pragma unroll 1
    for (int step = 0; step < Traits::kSteps && begin + step * Traits::kStepElements < k; ++step) {
      Fragments f;
      place.load(f, stages, step);
      multiply<Traits>(acc, f);
    }
  }
}

/// A warp's 64x64 outputs of a tile. Warps of one scheduler (four apart) have different rows where
/// there are eight of them: a tile of 64 rows keeps all schedulers busy.
template <typename Traits>
struct WarpPlace {
  int m;
  int n;

  __device__ __forceinline__ explicit WarpPlace(int warp)
      : m(warp / (Traits::kTileN / 64)), n(warp % (Traits::kTileN / 64)) {}
  __device__ __forceinline__ int64_t row(const QueuedTile& tile) const {
    return int64_t{tile.row_tile} * Traits::kTileM + m * 64;
  }
  __device__ __forceinline__ int64_t col(const QueuedTile& tile) const {
    return int64_t{tile.col_tile} * Traits::kTileN + n * 64;
  }
};

template <typename Traits>
__device__ __forceinline__ void store_results(const ProductArguments& args, const GroupEntry& entry,
                                              int64_t row, int64_t col, char* strip,
                                              const typename Traits::Acc (&acc)[4][8][4]) {
  using Acc = typename Traits::Acc;
  if constexpr (std::is_same_v<Acc, float>) {
    if (is_plain<typename Traits::Element>(args, entry)) {
      store_plain_tile<typename Traits::Element>(entry, row, col, strip, acc);
      return;
    }
  }
  store_warp_tile<Acc>(args, entry, row, col, acc, reinterpret_cast<Acc*>(strip));
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kThreads, Traits::kBlocksOfSm)
    mma_kernel(const __grid_constant__ ProductArguments args) {
  using Acc = typename Traits::Acc;
  using Loads = TileLoads<Traits>;
  extern __shared__ __align__(128) char shared[];
  const int warp = ptx::uniform(static_cast<int>(threadIdx.x) / 32);
  const WarpPlace<Traits> warp_place(warp);
  const FragmentPlace<Traits> place(warp_place.m, warp_place.n);
  char* strips = shared + Traits::kStages * Traits::kStageBytes;
  char* queue_bytes = strips + Traits::kWarps * kStripBytes;
  Ring<Traits> ring{.stages = ptx::shared_address(shared)};
  Loads loads(args);

  TileQueue<> queue(args, reinterpret_cast<TileQueueStorage*>(queue_bytes));
  __syncthreads();
  QueuedTile tile;
  bool more = queue.first(&tile);
  bool vectors = more && Loads::vectors(args, tile);
  if (vectors) {
    fill_ring(ring, loads, args, tile);
    ring.next();
  }
  while (more) {
    QueuedTile next;
    const bool next_exists = queue.next(&next);
    const bool next_vectors = next_exists && Loads::vectors(args, next);
    // The next tile's first blocks follow this one's last ones without a pause.
    const bool streams = vectors && next_vectors &&
                         TileBlocks::of<Traits>(args, tile).template fills_ring<Traits>() &&
                         TileBlocks::of<Traits>(args, next).template fills_ring<Traits>();
    Acc acc[4][8][4] = {};
    if (vectors) {
      // A warp whose rows or columns all lie behind the group's last one only helps to load.
      const int64_t rows_left = tile.entry->m - int64_t{tile.row_tile} * Traits::kTileM;
      const int64_t cols_left = tile.entry->n - int64_t{tile.col_tile} * Traits::kTileN;
      const ActiveWarps active{
          .all = rows_left > Traits::kTileM - 64 && cols_left > Traits::kTileN - 64,
          .mine = rows_left > warp_place.m * 64 && cols_left > warp_place.n * 64};
      multiply_tile<Traits>(acc, args, tile, active, place, ring, loads, [&] {
        if (streams) loads.begin(args, next);
      });
    } else {
      multiply_tile_by_elements<Traits>(acc, args, tile, ring.stages, place);
    }
    if (!streams) {
      // All warps have left the stages, and what the queue asked for is there: without a block of K
      // nothing has been committed.
      ptx::cp_async_wait_all();
      __syncthreads();
      if (next_vectors) fill_ring(ring, loads, args, next);
    }
    store_results<Traits>(args, *tile.entry, warp_place.row(tile), warp_place.col(tile),
                          strips + warp * kStripBytes, acc);
    if (!streams && next_vectors) ring.next();
    tile = next;
    more = next_exists;
    vectors = next_vectors;
  }
  zero_uncovered_rows(args);
}

}  // namespace cadre::sm80
