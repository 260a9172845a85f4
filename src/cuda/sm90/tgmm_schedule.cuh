// The scheduler warp of tgmm: takes tiles from a counter that all CTAs share and feeds them, with
// everything that depends on the group, into a ring in shared memory. Groups come longest first
// (tgmm_plan.cuh), so the last tiles are short and all CTAs end together, however skewed the sizes
// are. Every group has the same number of tiles, empty ones too: their result is written all the
// same.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/tgmm_arguments.h"
#include "cuda/sm90/tgmm_storage.cuh"

namespace cadre::sm90 {

// Coordinates of the ragged map (tensor_map.h): the bound of its second dim falls on a group's end.
inline constexpr int kRaggedBound = 1 << 30;

__device__ __forceinline__ float tgmm_read_scalar(const TgmmScalars& scalars, int group) {
  if (scalars.data == nullptr) return scalars.value;
  const int64_t index = group * scalars.stride;
  if (scalars.is_f64) return static_cast<float>(static_cast<const double*>(scalars.data)[index]);
  return static_cast<const float*>(scalars.data)[index];
}

// The last two coordinates of a matrix in a map that spans the address space (tgmm_launch.cc).
__device__ __forceinline__ void tgmm_locate(const TgmmMatrices& matrices, int group, int* low,
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
struct TgmmTileOrder {
  uint32_t tiles_k;
  uint32_t tiles_n;
  uint32_t tiles;  // of a group
  uint32_t band;
  uint32_t atoms;  // of 64 columns in a tile
  uint32_t wider;  // tiles with one more, the first ones

  __device__ TgmmTileOrder(const TgmmArguments& args, int columns)
      : tiles_k((args.k + kTgmmTileK - 1) / kTgmmTileK),
        tiles_n((args.n + columns - 1) / columns),
        tiles(tiles_k * tiles_n),
        band(args.band),
        atoms((args.n + 63) / 64 / tiles_n),
        wider((args.n + 63) / 64 % tiles_n) {}

  __device__ void locate(uint32_t index, TgmmTile* tile) const {
    const uint32_t first = index / (band * tiles_n) * band;
    const uint32_t inside = index - first * tiles_n;
    const uint32_t height = min(band, tiles_k - first);
    const uint32_t column = inside / height;
    tile->k = static_cast<int>(first + inside - column * height) * kTgmmTileK;
    tile->n = static_cast<int>(column * atoms + min(column, wider)) * 64;
    tile->columns = static_cast<int>(atoms + (column < wider)) * 64;
  }
};

template <typename Traits>
__device__ void tgmm_schedule(TgmmStorage<Traits>& shared, const TgmmArguments& args) {
  const int lane = threadIdx.x % 32;
  const TgmmTileOrder order(args, Traits::kTileN);
  TgmmCursor<kTgmmRingSlots> ring;
  TgmmTile tile{};
  uint32_t loaded = ~0u;  // the group in `tile`, as a place in the plan
  uint32_t number = blockIdx.x;
  uint32_t claim = ~0u;
  while (true) {
    const uint32_t place = number / order.tiles;
    const bool more = place < static_cast<uint32_t>(args.num_local);
    // The next tile's number is on its way while this tile is handed out.
    uint32_t claimed = 0;
    if (more && lane == 0 && args.tile_counter != nullptr) {
      claimed = atomicAdd(args.tile_counter, 1u);
    }
    if (more && place != loaded) {
      const TgmmGroup group = args.plan->groups[place];
      tile.row = group.row;
      tile.rows = group.rows;
      tgmm_locate(args.out, group.group, &tile.out_low, &tile.out_high);
      if (Traits::kWithC) tgmm_locate(args.c, group.group, &tile.c_low, &tile.c_high);
      // An empty group gives beta * C, whatever alpha is.
      tile.alpha = tile.rows > 0 ? tgmm_read_scalar(args.alpha, group.group) : 0.0f;
      tile.beta = Traits::kWithC ? tgmm_read_scalar(args.beta, group.group) : 0.0f;
      loaded = place;
    }
    if (more) {
      order.locate(number - place * order.tiles, &tile);
    } else {
      tile.row = -1;
    }
    ptx::mbarrier_wait(ptx::shared_address(&shared.ring_empty[ring.slot]), ring.parity ^ 1);
    if (lane == 0) {
      shared.ring[ring.slot] = tile;
      ptx::mbarrier_arrive(ptx::shared_address(&shared.ring_full[ring.slot]));
    }
    ring.advance();
    if (!more) break;
    if (args.tile_counter == nullptr) {
      number += gridDim.x;
    } else {
      claim = __shfl_sync(0xffffffffu, claimed, 0);
      number = claim + gridDim.x;
    }
  }
  // Each CTA fails to claim exactly once, so this claim is the last of all: the counter is 0 again.
  const uint32_t last = order.tiles * static_cast<uint32_t>(args.num_local) - 1;
  if (lane == 0 && args.tile_counter != nullptr && claim == last) {
    atomicExch(args.tile_counter, 0u);
  }
}

// The reading side: every thread that reads a tile waits for it; one thread of each reading warp
// hands the slot back.
template <typename Traits>
__device__ __forceinline__ TgmmTile tgmm_read_tile(TgmmStorage<Traits>& shared,
                                                   const TgmmCursor<kTgmmRingSlots>& ring) {
  ptx::mbarrier_wait(ptx::shared_address(&shared.ring_full[ring.slot]), ring.parity);
  return shared.ring[ring.slot];
}

template <typename Traits>
__device__ __forceinline__ void tgmm_release_tile(TgmmStorage<Traits>& shared,
                                                  const TgmmCursor<kTgmmRingSlots>& ring) {
  ptx::mbarrier_arrive(ptx::shared_address(&shared.ring_empty[ring.slot]));
}

}  // namespace cadre::sm90
