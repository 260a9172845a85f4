// The sink of shapes whose 16-bit results fit into registers beside the next tile's sums: they are
// packed at once and stored chunk by chunk while the next tile's products run. Two to four chunk
// buffers of each warpgroup are C's way in and out's way out.
#pragma once

#include <type_traits>

#include "cuda/ptx/fences.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/epilogue/chunk.cuh"

namespace cadre::sm90 {

// The first feature of a warpgroup's block within the tile.
template <typename Traits>
__device__ __forceinline__ int block_feature(const ConsumerPlace& place, int block) {
  return (place.warpgroup * Traits::kBlocks + block) * kBlockRows;
}

template <typename Traits>
__device__ __forceinline__ OutputPlace output_place(const GmmArguments& args,
                                                    const ConsumerPlace& place, const Tile& tile) {
  return output_place(args, tile, block_feature<Traits>(place, 0));
}

// The chunk buffers are used in turn. Buffer b belongs to the copies of lane 0 of warp b: a store
// leaves it busy until the copy engine has read it; C arrives in it before the result replaces it.
template <typename Traits, typename Storage>
class ChunkBuffers {
 public:
  static_assert(Traits::kChunkBuffers >= 2 && Traits::kChunkBuffers <= 4);

  // C of the current tile is on its way.
  __device__ __forceinline__ bool reads_c() const {
    return Traits::kReadsC && (state_ & kReadsC) != 0;
  }
  __device__ __forceinline__ void forget_c() { state_ &= ~kReadsC; }

  // The current buffer. It is free: publish() of the chunk before saw to that.
  __device__ __forceinline__ uint32_t address(Storage& shared, const ConsumerPlace& place) const {
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

  // The issuer loads chunk `index` of C into the current buffer.
  __device__ __forceinline__ void load_c(Storage& shared, const GmmArguments& args,
                                         const ConsumerPlace& place, const Tile& tile,
                                         int index) const {
    const bool wide = args.epilogue.out == ElementKind::kF32;
    const int first = index * (wide ? kWideChunkTokens : kChunkTokens);
    if (!issuer()) return;
    ptx::bulk_wait_group_read<0>();
    if (first >= tile.rows) return;
    load_c_chunk(args, tile, address(shared, place),
                 ptx::shared_address(&shared.c_full[place.warpgroup][buffer()]),
                 tile.feature + block_feature<Traits>(place, 0), first, ptx::kEvictFirst);
  }

  // Before C is loaded into a buffer whose result was the last to be stored: threads may still read
  // the columns that the copy engine leaves (store_rest).
  __device__ __forceinline__ static void finish_rest(const GmmArguments& args,
                                                     const ConsumerPlace& place) {
    if (args.whole_columns != args.n) warpgroup_sync(place);
  }

  // Starts the first chunks of C; every earlier store must have been issued.
  __device__ __forceinline__ void start_c(Storage& shared, const GmmArguments& args,
                                          const ConsumerPlace& place, const Tile& tile) {
    state_ |= kReadsC;
    finish_rest(args, place);
    for (int index = 0; index < Traits::kChunkBuffers; ++index) {
      load_c(shared, args, place, tile, index);
      advance();
    }
  }

  __device__ __forceinline__ uint32_t wait_for_c(Storage& shared, const ConsumerPlace& place) {
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

// A finished tile whose 16-bit results still wait in registers. packed[2j + h]: feature lane/4 + 8h
// of the warp's 16, tokens 8j + 2(lane%4) and the next one.
template <typename Traits>
struct PendingTile {
  static constexpr int kTokens = Traits::kDeferredTokens;
  uint32_t packed[kTokens > 0 ? kTokens / 4 : 1];
  int chunk = 0;   // next to store
  int chunks = 0;  // of this tile

  __device__ __forceinline__ bool waits() const { return chunk < chunks; }
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (uint32_t& pair : packed) pair = 0;
  }
};

// The next 64 tokens through one chunk buffer: stmatrix transposes, the copy engine writes the
// valid rows. Registers have no run-time index, so each chunk has its own code.
template <typename Traits, typename Storage>
__device__ __forceinline__ void store_next_chunk(Storage& shared, const GmmArguments& args,
                                                 const ConsumerPlace& place,
                                                 ChunkBuffers<Traits, Storage>& buffers,
                                                 PendingTile<Traits>& pending) {
  const auto store = [&](auto number) {
    constexpr int kFirst = decltype(number)::value * kChunkTokens;
    if constexpr (kFirst < PendingTile<Traits>::kTokens) {
      const uint32_t* p = pending.packed + kFirst / 4;
      const uint32_t chunk = buffers.address(shared, place);
      const uint32_t address = chunk + matrix_offset(ptx::thread_index());
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        ptx::stmatrix_x4_transposed(address + i * 4 * 128, {p[i], p[i + 1], p[i + 2], p[i + 3]});
      }
      buffers.publish(place);
      const OutputPlace& to = shared.pending[place.warpgroup][buffers.place_slot()];
      if (buffers.issuer()) {
        send_box(args, to, chunk, to.feature, kFirst);
        ptx::bulk_commit_group();
      }
      store_rest<false>(args, place, to, chunk, to.feature, kFirst);
      buffers.advance();
    }
  };
  switch (pending.chunk) {
    case 0:
      store(std::integral_constant<int, 0>{});
      break;
    case 1:
      store(std::integral_constant<int, 1>{});
      break;
    case 2:
      store(std::integral_constant<int, 2>{});
      break;
    default:
      store(std::integral_constant<int, 3>{});
      break;
  }
  ++pending.chunk;
}

// Notes where the results go that `pending` is about to hold.
template <typename Traits, typename Storage>
__device__ __forceinline__ void start_pending(Storage& shared, const GmmArguments& args,
                                              const ConsumerPlace& place, const Tile& tile,
                                              int width, ChunkBuffers<Traits, Storage>& buffers,
                                              PendingTile<Traits>& pending) {
  buffers.next_place();
  if (place.leader()) {
    shared.pending[place.warpgroup][buffers.place_slot()] = output_place<Traits>(args, place, tile);
  }
  pending.chunk = 0;
  pending.chunks = (width + kChunkTokens - 1) / kChunkTokens;
}

// Rounds the sums into `pending`; with C (kC), which arrives chunk by chunk in the layout of the
// output and is read back transposed.
template <typename Transform, bool kC, typename Traits, typename Storage>
__device__ __forceinline__ void finish_packed(Storage& shared, const GmmArguments& args,
                                              const ConsumerPlace& place, const Tile& tile,
                                              ChunkBuffers<Traits, Storage>& buffers,
                                              const float (&acc)[Traits::kTokens / 2],
                                              PendingTile<Traits>& pending) {
  using T = typename Traits::ElementA;
  static_assert(Traits::kTokens == Traits::kDeferredTokens);
  const ChunkLane lane(ptx::thread_index());
  const Transform transform(shared.inputs, block_feature<Traits>(place, 0) + lane.feature);
  const float beta = kC ? shared.inputs.beta : 0.0f;
#pragma unroll
  for (int chunk = 0; chunk < Traits::kTokens / kChunkTokens; ++chunk) {
    if (chunk * kChunkTokens >= tile.rows) {
      // Assigned all the same: old values would have to be kept in registers meanwhile.
#pragma unroll
      for (int i = chunk * 16; i < chunk * 16 + 16; ++i) pending.packed[i] = 0;
      continue;
    }
    const uint32_t c_chunk = kC ? buffers.wait_for_c(shared, place) + lane.matrix : 0;
#pragma unroll
    for (int j = chunk * 8; j < chunk * 8 + 8; j += 2) {
      uint32_t c[4] = {};
      if constexpr (kC) ptx::ldmatrix_x4_transposed(c, c_chunk + j % 8 * 1024);
      const typename Transform::template Rows<2> rows(shared.inputs, j, lane.token);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const int h = word % 2;
        const float* sums = acc + 4 * (j + word / 2) + 2 * h;
        float value[2] = {transform(sums[0], h, rows.at(word / 2, 0)),
                          transform(sums[1], h, rows.at(word / 2, 1))};
        if constexpr (kC) {
          const float2 pair = unpack<T>(c[word]);
          value[0] = add_c(beta, pair.x, value[0]);
          value[1] = add_c(beta, pair.y, value[1]);
        }
        pending.packed[2 * j + word] = pack<T>(value[0], value[1]);
      }
    }
    if constexpr (kC) {
      warpgroup_sync(place);  // everyone has read the buffer
      buffers.load_c(shared, args, place, tile, chunk + Traits::kChunkBuffers);
      buffers.advance();
    }
  }
}

}  // namespace cadre::sm90
