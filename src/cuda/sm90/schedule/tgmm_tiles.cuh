// The tiles of tgmm. First every CTA turns the sizes on the device into groups with checked rows,
// longest first: all of them write the same values to the same place and read them back
// themselves, so that a call is one launch. Then a scheduler warp takes tiles from a counter that
// all CTAs share and feeds them, with everything that depends on the group, into the ring. The
// longest come first, so the last tiles are short and all CTAs end together, however skewed the
// sizes are. Every group has the same number of tiles, empty ones too: their result is written all
// the same.
#pragma once

#include <cstdint>

#include "cuda/group_inputs.cuh"
#include "cuda/ptx/fences.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/epilogue/factors.cuh"
#include "cuda/sm90/mma/operands.cuh"
#include "cuda/sm90/schedule/tile.cuh"
#include "cuda/sm90/schedule/tile_ring.cuh"
#include "plan/even_cut.h"
#include "plan/tile_walk.h"

namespace cadre::sm90 {

// Sorting compares every group with every other; beyond this many the order is left alone.
inline constexpr int kMaxSorted = 1024;

// Lies in the first stage, before anything is loaded into it.
struct PlanScratch {
  cuda::ScanScratch<kCtaThreads> scan;
  int rows[kMaxSorted];
};

// Whether a matrix of a list is none that the copy engine can take. All threads get the answer.
__device__ __forceinline__ bool any_unaligned(const TgmmArguments& args, bool with_c) {
  int unaligned = 0;
  for (const uint64_t* pointers : {args.out.pointers, with_c ? args.c.pointers : nullptr}) {
    for (int i = static_cast<int>(threadIdx.x); pointers != nullptr && i < args.num_local;
         i += kCtaThreads) {
      unaligned |= static_cast<int>(pointers[i] % 16);
    }
  }
  return __syncthreads_or(unaligned) != 0;
}

// All threads of the CTA; false when there is nothing to do.
template <typename Traits, typename Storage>
__device__ __forceinline__ bool make_plan(Storage& shared, const TgmmArguments& args) {
  static_assert(sizeof(PlanScratch) <= sizeof shared.stages);
  const bool unaligned = any_unaligned(args, Traits::kReadsC);
  if (threadIdx.x == 0) args.plan->unaligned = unaligned ? 1 : 0;
  if (unaligned) return false;
  auto& scratch = *reinterpret_cast<PlanScratch*>(&shared.stages);
  cuda::scan_groups(args.groups, args.offsets, scratch.scan);
  __syncthreads();
  const int num_local = args.num_local;
  const bool sorts = num_local <= kMaxSorted;
  for (int i = static_cast<int>(threadIdx.x); sorts && i < num_local; i += kCtaThreads) {
    scratch.rows[i] = static_cast<int>(args.offsets[i + 1] - args.offsets[i]);
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < num_local; i += kCtaThreads) {
    const TgmmGroup group = {.row = static_cast<int>(args.offsets[i]),
                             .rows = static_cast<int>(args.offsets[i + 1] - args.offsets[i]),
                             .group = i};
    int place = i;
    if (sorts) {
      place = 0;
#pragma unroll 8
      for (int j = 0; j < num_local; ++j) {
        place += scratch.rows[j] > group.rows || (scratch.rows[j] == group.rows && j < i);
      }
    }
    args.plan->groups[place] = group;
  }
  ptx::fence_async_shared();  // the copy engine writes the stages next
  __syncthreads();
  return true;
}

// The last two coordinates of a matrix in a map that spans the address space (launch_tgmm.cc).
__device__ __forceinline__ void locate_matrix(const TgmmMatrices& matrices, int group, int* low,
                                              int* high) {
  const uint64_t address = matrices.pointers != nullptr
                               ? matrices.pointers[group]
                               : matrices.base + group * matrices.group_stride_bytes;
  const uint64_t offset = address - matrices.map_base;
  *low = static_cast<int>((offset >> 4) & ((1 << kTgmmLowBits) - 1));
  *high = static_cast<int>(offset >> (4 + kTgmmLowBits));
}

// The tiles of one matrix of out, in bands along k that are swept along n: tiles that run together
// share their columns of lhs and rhs in L2. Widths differ by at most 64 columns, so that there is
// no thin tile at the edge.
struct TgmmTiles {
  plan::BandedTiles order;
  plan::EvenCut columns;
  uint32_t count;  // of a group

  template <typename Traits>
  static __device__ TgmmTiles of(const TgmmArguments& args) {
    const int tiles_k = (args.k + Traits::kRowsA - 1) / Traits::kRowsA;
    const int tiles_n = (args.n + Traits::kWidth - 1) / Traits::kWidth;
    return {.order = {tiles_k, tiles_n, args.band},
            .columns = {static_cast<uint32_t>((args.n + 63) / 64), static_cast<uint32_t>(tiles_n)},
            .count = static_cast<uint32_t>(tiles_k) * static_cast<uint32_t>(tiles_n)};
  }

  template <typename Traits>
  __device__ void locate(uint32_t index, TgmmTile* tile) const {
    int32_t row_tile = 0;
    int32_t col_tile = 0;
    order.tile_at(static_cast<int32_t>(index), &row_tile, &col_tile);
    columns.tile_at(col_tile, &tile->n, &tile->columns);
    tile->k = row_tile * Traits::kRowsA;
    tile->n *= 64;
    tile->columns *= 64;
  }
};

// One warp: all tiles of a CTA, and the end.
template <typename Traits, typename Storage>
__device__ void schedule(Storage& shared, const TgmmArguments& args) {
  const auto tiles = TgmmTiles::of<Traits>(args);
  Cursor<Traits::kRingSlots> ring;
  TileNumbers<uint32_t> numbers(args.tile_counter);
  TgmmTile tile{};
  uint32_t loaded = ~0u;  // the group in `tile`, as a place in the plan
  while (true) {
    const uint32_t place = numbers.index() / tiles.count;
    const bool more = place < static_cast<uint32_t>(args.num_local);
    if (more) numbers.claim();  // its answer comes while this tile is handed out
    if (more && place != loaded) {
      const TgmmGroup group = args.plan->groups[place];
      tile.row = group.row;
      tile.rows = group.rows;
      locate_matrix(args.out, group.group, &tile.out_low, &tile.out_high);
      if (Traits::kReadsC) locate_matrix(args.c, group.group, &tile.c_low, &tile.c_high);
      // An empty group gives beta * C, whatever alpha is.
      tile.alpha = tile.rows > 0 ? read_factor(args.alpha, group.group) : 0.0f;
      tile.beta = Traits::kReadsC ? read_factor(args.beta, group.group) : 0.0f;
      loaded = place;
    }
    if (more) {
      tiles.template locate<Traits>(numbers.index() - place * tiles.count, &tile);
    } else {
      tile.set_end();
    }
    publish_tile(shared, ring, tile);
    if (!more) break;
    numbers.advance();
  }
  numbers.finish(tiles.count * static_cast<uint32_t>(args.num_local));
}

}  // namespace cadre::sm90
