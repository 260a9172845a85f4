// gmm on Hopper with both warpgroups on one tile: out[rows of g] = lhs[rows of g] x rhs[g] with the
// weights as operand A of wgmma and the tokens as operand B, so that a tile is as wide as its
// tokens. A persistent CTA is three warps that feed and two warpgroups that multiply:
//   schedule -> ring of tiles -> fill_stages -> stages -> consume -> epilogue -> out
//                             -> load_factors --------------^
#pragma once

#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/epilogue/at_once.cuh"
#include "cuda/sm90/epilogue/deferred.cuh"
#include "cuda/sm90/epilogue/factors.cuh"
#include "cuda/sm90/mma/k_loop.cuh"
#include "cuda/sm90/pipeline/cta.cuh"
#include "cuda/sm90/pipeline/producers.cuh"
#include "cuda/sm90/schedule/gmm_tiles.cuh"
#include "cuda/sm90/schedule/recorder.cuh"

namespace cadre::sm90 {

template <typename Traits>
struct GmmStorage {
  using Tile = sm90::Tile;

  alignas(1024) unsigned char stages[Traits::kStages][Traits::kStageBytes];
  alignas(1024) unsigned char chunks[kConsumers][Traits::kChunkBuffers][kChunkBytes];
  Tile ring[Traits::kRingSlots];
  alignas(16) OutputPlace pending[kConsumers][2];  // of this tile and of the one before
  EpilogueInputs<Traits> inputs;
  uint64_t stage_full[Traits::kStages];
  uint64_t stage_empty[Traits::kStages];
  uint64_t ring_full[Traits::kRingSlots];
  uint64_t ring_empty[Traits::kRingSlots];
  uint64_t inputs_full[1];
  uint64_t inputs_empty[1];
  uint64_t c_full[kConsumers][Traits::kChunkBuffers];

  __device__ void init() {
    init_barriers(stage_full, 1);
    init_barriers(stage_empty, kConsumers);
    init_barriers(ring_full, 1);
    init_barriers(ring_empty, 4 * kConsumers + 2);  // warps of consumers, and the two that feed
    init_barriers(inputs_full, 32);
    init_barriers(inputs_empty, 128 * kConsumers);
    for (auto& of_warpgroup : c_full) init_barriers(of_warpgroup, 1);
  }
};

// One warp: the factors of all tiles, while their products run. Every consumer thread arrives on
// inputs_empty once it has read a tile's factors.
template <typename Traits>
__device__ void load_factors(GmmStorage<Traits>& shared, const GmmArguments& args) {
  Cursor<Traits::kRingSlots> ring;
  Cursor<1> inputs;
  while (true) {
    const Tile tile = take_tile(shared, ring);
    if (tile.is_end()) return;
    if (Tile::kind(tile.control) == Tile::kZero || !args.epilogue.has_factors) continue;
    const LoadedFactors<Traits> factors(args, tile);
    ptx::mbarrier_wait(ptx::shared_address(shared.inputs_empty), inputs.parity() ^ 1);
    factors.store(shared.inputs, shared.inputs_full[0], args, tile);
    inputs.advance();
  }
}

// A consumer warpgroup's way through the tiles: all of them, half of each.
template <typename Traits>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(GmmStorage<Traits>& shared, const GmmArguments& args,
                                      int warpgroup)
      : shared_(shared), args_(args), place_{warpgroup} {}

  __device__ __forceinline__ void run() {
    const bool factors = args_.epilogue.has_factors;
    uint32_t inputs_parity = 0;
    Cursor<Traits::kRingSlots> ring;
    Tile tile = take_tile(shared_, ring);
    while (!tile.is_end()) {
      Tile next;
      if (Tile::kind(tile.control) == Tile::kZero) {
        zero_tile(tile);
        next = take_tile(shared_, ring);
      } else {
        Accumulators<Traits> acc;
        buffers_.forget_c();
        record_start<Traits>(args_.recorder);
        multiply<Traits>(
            shared_, place_, KBlocks<Traits>(args_.k), TokenInstruction{Tile::width(tile.control)},
            stage_, acc, [&](int block) { during_products(tile, block); },
            [&] { next = take_tile(shared_, ring); });
        store_pending();
        if (wants_c(tile) && !buffers_.reads_c()) buffers_.start_c(shared_, args_, place_, tile);
        if (factors) ptx::mbarrier_wait(ptx::shared_address(shared_.inputs_full), inputs_parity);
        finish_tile(tile, acc);
        record_end<Traits>(args_.recorder, tile);
        if (factors) ptx::mbarrier_arrive(ptx::shared_address(shared_.inputs_empty));
        inputs_parity ^= 1;
      }
      tile = next;
    }
    store_pending();
    if (place_.lane() == 0) ptx::bulk_wait_group<0>();
  }

 private:
  static constexpr bool kDefers = Traits::kDeferredTokens > 0;

  __device__ __forceinline__ static bool wants_c(const Tile& tile) {
    return Traits::kReadsC && Tile::reads_c(tile.control);
  }

  __device__ __forceinline__ void store_pending() {
    while (pending_.waits()) store_next_chunk<Traits>(shared_, args_, place_, buffers_, pending_);
  }

  // The previous tile's results leave, and this tile's C comes in.
  __device__ __forceinline__ void during_products(const Tile& tile, int block) {
    if (!kDefers) {
      if (block == 0) wait_for_free_chunks<Traits>(place_);
    } else if (pending_.waits()) {
      store_next_chunk<Traits>(shared_, args_, place_, buffers_, pending_);
    } else if (wants_c(tile) && !buffers_.reads_c()) {
      buffers_.start_c(shared_, args_, place_, tile);
    }
  }

  // From sums to out, or to `pending`.
  __device__ __forceinline__ void finish_tile(const Tile& tile, const Accumulators<Traits>& acc) {
    const bool factors = args_.epilogue.has_factors;
    const int width = Tile::width(tile.control);
    if constexpr (!kDefers) {
      if (factors) {
        finish_at_once<RowFactors, Traits>(shared_, args_, place_, tile, width, acc);
      } else {
        finish_at_once<PlainSums, Traits>(shared_, args_, place_, tile, width, acc);
      }
    } else if (args_.epilogue.out == ElementKind::kF32) {
      if (buffers_.reads_c()) {
        finish_wide<RowFactors, true>(shared_, args_, place_, tile, buffers_, acc[0]);
      } else if (factors) {
        finish_wide<RowFactors, false>(shared_, args_, place_, tile, buffers_, acc[0]);
      } else {
        finish_wide<PlainSums, false>(shared_, args_, place_, tile, buffers_, acc[0]);
      }
      pending_.clear();  // nothing waits; said so that no register is held for it during the above
    } else {
      start_pending(shared_, args_, place_, tile, width, buffers_, pending_);
      if (buffers_.reads_c()) {
        finish_packed<RowFactors, true>(shared_, args_, place_, tile, buffers_, acc[0], pending_);
      } else if (factors) {
        finish_packed<RowFactors, false>(shared_, args_, place_, tile, buffers_, acc[0], pending_);
      } else {
        finish_packed<PlainSums, false>(shared_, args_, place_, tile, buffers_, acc[0], pending_);
      }
    }
  }

  // Rows that belong to no local group.
  __device__ __forceinline__ void zero_tile(const Tile& tile) {
    store_pending();
    if constexpr (!kDefers) {
      const uint32_t buffer = ptx::shared_address(shared_.chunks[place_.warpgroup][0]);
      wait_for_free_chunks<Traits>(place_);
      clear_chunk(buffer);
      ptx::fence_async_shared();
      warpgroup_sync(place_);
      send_cleared_chunk<Traits, false>(args_, place_, tile, buffer, place_.leader());
    } else if (args_.epilogue.out == ElementKind::kF32) {
      const uint32_t buffer = buffers_.address(shared_, place_);
      clear_chunk(buffer);
      buffers_.publish(place_);
      send_cleared_chunk<Traits, true>(args_, place_, tile, buffer, buffers_.issuer());
      buffers_.advance();
    } else {
      pending_.clear();
      const int width = (tile.rows + kTokenStep - 1) / kTokenStep * kTokenStep;
      start_pending(shared_, args_, place_, tile, width, buffers_, pending_);
    }
  }

  GmmStorage<Traits>& shared_;
  const GmmArguments& args_;
  ConsumerPlace place_;
  Cursor<Traits::kStages> stage_;
  ChunkBuffers<Traits, GmmStorage<Traits>> buffers_;
  PendingTile<Traits> pending_;
};

template <typename Traits>
__global__ void __launch_bounds__(kCtaThreads, 1)
    gmm_kernel(const __grid_constant__ GmmArguments args) {
  using Storage = GmmStorage<Traits>;
  static_assert(sizeof(Storage) <= kSharedBytes);
  extern __shared__ __align__(1024) unsigned char raw[];
  Storage& shared = *reinterpret_cast<Storage*>(raw);
  start_cta([&] { shared.init(); }, args.tokens_map, args.weights_map, args.out_map);
  if (args.skip_if != nullptr && *args.skip_if != 0) return;
  const int warpgroup = ptx::uniform(threadIdx.x / 128);
  if (warpgroup == 0) {
    ptx::decrease_registers<Traits::kFeedRegisters>();
    const int warp = ptx::uniform(threadIdx.x / 32);
    if (warp == 0) {
      if (threadIdx.x % 32 == 0) {
        if constexpr (Traits::kStreams) {
          stream_stages<Traits>(shared, GmmSource<Traits, Storage>(shared, args));
        } else {
          fill_stages<Traits>(shared, GmmSource<Traits, Storage>(shared, args));
        }
      }
    } else if (warp == 1) {
      schedule<Traits>(shared, args);
    } else if (warp == 2) {
      load_factors<Traits>(shared, args);
    }
  } else {
    ptx::increase_registers<Traits::kMultiplyRegisters>();
    Consumer<Traits>(shared, args, warpgroup - 1).run();
  }
}

}  // namespace cadre::sm90
