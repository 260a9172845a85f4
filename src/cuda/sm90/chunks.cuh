// What both epilogues share: a consumer thread's place, and the chunk buffers of a warpgroup with
// C's way in and out's way out.
#pragma once

#include "cuda/ptx/address.cuh"
#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/ptx/named_barrier.cuh"
#include "cuda/ptx/shared_access.cuh"
#include "cuda/ptx/tma.cuh"
#include "cuda/sm90/gmm_arguments.h"
#include "cuda/sm90/gmm_storage.cuh"

namespace cadre::sm90 {

// What a thread of a consumer warpgroup knows of its place. All but the warpgroup is read anew each
// time: a register held through the products costs more than the read.
struct ConsumerPlace {
  int warpgroup;  // 0 or 1: blocks kBlocks * warpgroup and on

  __device__ __forceinline__ int warp() const { return ptx::thread_index() / 32 % 4; }
  __device__ __forceinline__ int lane() const { return ptx::thread_index() % 32; }
  // One thread for the warpgroup.
  __device__ __forceinline__ bool leader() const { return ptx::thread_index() % 128 == 0; }
};

// The first feature of a warpgroup's block within the tile.
template <typename Traits>
__device__ __forceinline__ int block_feature(const ConsumerPlace& place, int block) {
  return (place.warpgroup * Traits::kBlocks + block) * kBlockFeatures;
}

// A thread's first feature within a block; the other one is 8 further.
__device__ __forceinline__ int feature_in_block(const ConsumerPlace& place) {
  return 16 * place.warp() + place.lane() / 4;
}

// A thread's first token of 8 in the accumulators; the other one is the next.
__device__ __forceinline__ int pair_token() { return 2 * (ptx::thread_index() % 4); }

__device__ __forceinline__ void warpgroup_sync(const ConsumerPlace& place) {
  ptx::named_barrier_sync(1 + place.warpgroup, 128);
}

// Coordinates in a ragged map of the rows from row + first on: the second dim's bound falls on row
// + rows.
struct RaggedRows {
  int bound;
  int end;
  __device__ __forceinline__ RaggedRows(int row, int rows, int first)
      : bound((1 << 30) - rows + first), end(row + rows) {}
};

// The map of out or C that serves a group: the one of all rows, or the group's own (a list).
__device__ __forceinline__ const CUtensorMap* map_of(const CUtensorMap& all,
                                                     const CUtensorMap* of_groups, int group) {
  if (of_groups == nullptr) return &all;
  ptx::fence_tensor_map_acquire(of_groups + group);
  return of_groups + group;
}

template <typename Traits>
__device__ __forceinline__ OutputPlace output_place(const GmmArguments& args,
                                                    const ConsumerPlace& place, const Tile& tile) {
  return {.group = tile.group,
          .row = args.out_maps != nullptr ? tile.group_row : tile.row,
          .rows = tile.rows,
          .feature = tile.feature + block_feature<Traits>(place, 0)};
}

// Sends a chunk of 128 bytes x 64 tokens (32 of fp32) from `first_token` of the tile on. Columns
// from whole_columns on lie outside the map: the copy engine writes whole pieces of 16 bytes, and
// what follows the last column isn't ours.
__device__ __forceinline__ void send_chunk(const GmmArguments& args, const OutputPlace& to,
                                           uint32_t chunk, int feature, int first_token) {
  if (feature >= args.whole_columns) return;
  const RaggedRows rows(to.row, to.rows, first_token);
  ptx::tma_store_4d(map_of(args.out_map, args.out_maps, to.group), chunk, feature, rows.bound,
                    rows.end, 1 << 30);
}

template <typename Out>
__device__ __forceinline__ Out* out_row(const GmmArguments& args, const OutputPlace& to,
                                        int token) {
  void* base = args.out_list != nullptr ? args.out_list[to.group] : args.out;
  return static_cast<Out*>(base) + (to.row + token) * args.out_stride;
}

// The columns of a 16-bit chunk that send_chunk leaves, at most 7, by ordinary stores: all threads
// of the warpgroup, two for each token.
__device__ __forceinline__ void store_rest(const GmmArguments& args, const OutputPlace& to,
                                           uint32_t chunk, int feature, int first_token) {
  const int rest = args.whole_columns - feature;  // the first of them within the chunk
  if (args.whole_columns == args.n || rest < 0 || rest >= kBlockFeatures) return;
  const int thread = ptx::thread_index() % 128;
  const int token = thread / 2;
  if (first_token + token >= to.rows) return;
  const uint32_t piece = chunk + token * 128 + ((rest / 8) ^ (token % 8)) * 16;
  uint16_t* row = out_row<uint16_t>(args, to, first_token + token);
  for (int column = thread % 2; args.whole_columns + column < args.n; column += 2) {
    row[args.whole_columns + column] = ptx::load_shared_half(piece + column * 2);
  }
}

// The chunk buffers are used in turn. Buffer b belongs to the copies of lane 0 of warp b: a store
// leaves it busy until the copy engine has read it; C arrives in it before the result replaces it.
template <typename Traits>
class ChunkBuffers {
 public:
  static_assert(Traits::kChunkBuffers >= 2 && Traits::kChunkBuffers <= 4);

  // C of the current tile is on its way.
  __device__ __forceinline__ bool reads_c() const {
    return Traits::kGeneral && (state_ & kReadsC) != 0;
  }
  __device__ __forceinline__ void forget_c() { state_ &= ~kReadsC; }

  // The current buffer. It is free: publish() of the chunk before saw to that.
  __device__ __forceinline__ uint32_t address(GmmStorage<Traits>& shared,
                                              const ConsumerPlace& place) const {
    return ptx::shared_address(shared.chunks[place.warpgroup][buffer()]);
  }

  // Whether this thread is the one that copies from and to the current buffer.
  __device__ __forceinline__ bool issuer() const {
    return ptx::thread_index() % 128 == static_cast<int>(32 * buffer());
  }

  // All threads of the warpgroup, after they have written the current buffer: the issuer may send
  // it, and the next buffer has been read. One barrier does for both.
  __device__ __forceinline__ void publish(const ConsumerPlace& place) const {
    ptx::fence_async_shared();
    if (ptx::thread_index() % 128 == static_cast<int>(32 * next())) ptx::bulk_wait_group_read<0>();
    warpgroup_sync(place);
  }

  __device__ __forceinline__ void advance() { state_ = (state_ & ~kBuffer) | next(); }

  // Which of shared.pending belongs to the tile whose chunks are stored. Two take turns: the last
  // chunk's issuer may still read one while the leader writes the other.
  __device__ __forceinline__ int place_slot() const { return static_cast<int>(state_ >> 31); }
  __device__ __forceinline__ void next_place() { state_ ^= 1u << 31; }

  // The issuer loads chunk `index` of C into the current buffer. Rows past the tile's end are
  // filled with zeros.
  __device__ __forceinline__ void load_c(GmmStorage<Traits>& shared, const GmmArguments& args,
                                         const ConsumerPlace& place, const Tile& tile,
                                         int index) const {
    const bool wide = args.epilogue.out == ElementKind::kF32;
    const int first = index * (wide ? kChunkTokens / 2 : kChunkTokens);
    if (!issuer()) return;
    ptx::bulk_wait_group_read<0>();
    if (first >= tile.rows) return;
    const uint32_t full = ptx::shared_address(&shared.c_full[place.warpgroup][buffer()]);
    const int feature = tile.feature + block_feature<Traits>(place, 0);
    const CUtensorMap* map = map_of(args.c_map, args.c_maps, tile.group);
    const RaggedRows rows(args.c_maps != nullptr ? tile.group_row : tile.row, tile.rows, first);
    ptx::mbarrier_arrive_expect(full, kChunkBytes);
    ptx::tma_load_4d(address(shared, place), map, full, ptx::kEvictFirst, feature, rows.bound,
                     rows.end, 1 << 30);
    if (wide) {
      ptx::tma_load_4d(address(shared, place) + kChunkBytes / 2, map, full, ptx::kEvictFirst,
                       feature + 32, rows.bound, rows.end, 1 << 30);
    }
  }

  // Before C is loaded into a buffer whose result was the last to be stored: threads may still read
  // the columns that the copy engine leaves (store_rest).
  __device__ __forceinline__ static void finish_rest(const GmmArguments& args,
                                                     const ConsumerPlace& place) {
    if (args.whole_columns != args.n) warpgroup_sync(place);
  }

  // Starts the first chunks of C; every earlier store must have been issued.
  __device__ __forceinline__ void start_c(GmmStorage<Traits>& shared, const GmmArguments& args,
                                          const ConsumerPlace& place, const Tile& tile) {
    state_ |= kReadsC;
    finish_rest(args, place);
    for (int index = 0; index < Traits::kChunkBuffers; ++index) {
      load_c(shared, args, place, tile, index);
      advance();
    }
  }

  __device__ __forceinline__ uint32_t wait_for_c(GmmStorage<Traits>& shared,
                                                 const ConsumerPlace& place) {
    ptx::mbarrier_wait(ptx::shared_address(&shared.c_full[place.warpgroup][buffer()]),
                       (state_ >> (kParityShift + buffer())) & 1);
    state_ ^= 1u << (kParityShift + buffer());
    return address(shared, place);
  }

 private:
  static constexpr uint32_t kBuffer = 3;  // the next to use
  static constexpr uint32_t kReadsC = 4;
  static constexpr int kParityShift = 3;  // and on: the phase of each buffer's c_full to wait for

  __device__ __forceinline__ uint32_t buffer() const { return state_ & kBuffer; }
  __device__ __forceinline__ uint32_t next() const {
    return buffer() + 1 == Traits::kChunkBuffers ? 0 : buffer() + 1;
  }

  uint32_t state_ = 0;  // one register for all of it
};

}  // namespace cadre::sm90
