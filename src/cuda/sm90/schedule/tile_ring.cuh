// The ring through which the scheduler warp hands tiles to the other roles, and which tiles a CTA
// gets. A Storage has ring, ring_full and ring_empty.
#pragma once

#include <cstdint>

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/pipeline/cursor.cuh"

namespace cadre::sm90 {

// The writing side: one warp.
template <typename Storage, typename Tile, int kSlots>
__device__ __forceinline__ void publish_tile(Storage& shared, Cursor<kSlots>& ring,
                                             const Tile& tile) {
  ptx::mbarrier_wait(ptx::shared_address(&shared.ring_empty[ring.slot()]), ring.parity() ^ 1);
  if (threadIdx.x % 32 == 0) {
    shared.ring[ring.slot()] = tile;
    ptx::mbarrier_arrive(ptx::shared_address(&shared.ring_full[ring.slot()]));
  }
  ring.advance();
}

// The reading side of a role that is one thread.
template <typename Storage, int kSlots>
__device__ __forceinline__ auto next_tile(Storage& shared, Cursor<kSlots>& ring) {
  ptx::mbarrier_wait(ptx::shared_address(&shared.ring_full[ring.slot()]), ring.parity());
  const auto tile = shared.ring[ring.slot()];
  ptx::mbarrier_arrive(ptx::shared_address(&shared.ring_empty[ring.slot()]));
  ring.advance();
  return tile;
}

// The reading side of a whole warp: its first lane reads the tile, hands it back and tells the
// others. (racecheck orders what follows an mbarrier after the accesses of the very threads that
// arrived on it.)
template <typename Storage, int kSlots>
__device__ __forceinline__ auto take_tile(Storage& shared, Cursor<kSlots>& ring) {
  typename Storage::Tile tile{};
  ptx::mbarrier_wait(ptx::shared_address(&shared.ring_full[ring.slot()]), ring.parity());
  if (ptx::thread_index() % 32 == 0) {
    tile = shared.ring[ring.slot()];
    ptx::mbarrier_arrive(ptx::shared_address(&shared.ring_empty[ring.slot()]));
  }
  ring.advance();
  tile.share_in_warp();
  return tile;
}

// Which tiles a CTA computes. The first one is given; with a counter the next ones are claimed, so
// that CTAs with short tiles take more of them. Each CTA that had a first tile fails to claim
// exactly once, so the claim numbered (tiles - 1) is the last of all, and whoever gets it leaves
// the counter at 0.
template <typename Index>
class TileNumbers {
 public:
  __device__ explicit TileNumbers(uint32_t* counter) : counter_(counter) {}

  __device__ Index index() const { return index_; }

  // The next tile's number is on its way.
  __device__ void claim() {
    if (counter_ != nullptr && threadIdx.x % 32 == 0) claimed_ = atomicAdd(counter_, 1u);
  }
  __device__ void advance() {
    if (counter_ == nullptr) {
      index_ += gridDim.x;
    } else {
      claim_ = __shfl_sync(0xffffffffu, claimed_, 0);
      index_ = claim_ + gridDim.x;
    }
  }
  __device__ void finish(Index tiles) const {
    const bool last = counter_ != nullptr && claim_ != kNone && claim_ == tiles - 1;
    if (last && threadIdx.x % 32 == 0) atomicExch(counter_, 0u);
  }

 private:
  static constexpr Index kNone = static_cast<Index>(-1);

  uint32_t* counter_;
  Index index_ = blockIdx.x;
  Index claim_ = kNone;
  uint32_t claimed_ = 0;  // lane 0
};

}  // namespace cadre::sm90
