// Scales of FP8 operands whose results lie by rows (tgmm, grouped_gemm, gmm of blocks): for every
// block of 128 of K with its stage, or one for each row and column of a tile.
#pragma once

#include <cstdint>

#include "cuda/ptx/cp_async.cuh"
#include "cuda/ptx/mbarrier.cuh"
#include "cuda/sm90/arguments.h"
#include "cuda/sm90/pipeline/block_scales.cuh"
#include "cuda/sm90/pipeline/cta.cuh"
#include "cuda/sm90/schedule/tile.cuh"

namespace cadre::sm90 {

// Columns of B in a tile that have scales of their own, or 64 columns each: they never lie in two
// blocks of 128.
template <typename Traits>
inline constexpr int kScalesB =
    Traits::kPromotion == Promotion::kScaled ? Traits::kAtomsB : Traits::kWidth;

template <typename Traits>
struct RowStageScales {
  static constexpr int kCountB = (kScalesB<Traits> + 3) / 4 * 4;
  static constexpr uint32_t kBytesA = Traits::kRowsA * sizeof(float);  // of a stage
  static constexpr uint32_t kBytesB = kCountB * sizeof(float);
  float a[Traits::kStages][Traits::kRowsA];
  alignas(16) float b[Traits::kStages][kCountB];
};

// Where one operand's scales of a tile begin, and how many indices of it lie in the matrix.
struct ScaleWalk {
  const void* data;
  const sm80::ScaleArguments& form;
  int first;  // index of the operand's outer dim
  int end;

  __device__ __forceinline__ ScaleWalk(const sm80::ScaleArguments& arguments,
                                       const GroupedTile& tile, int first_index, int end_index)
      : form(arguments), first(first_index), end(end_index) {
    const int64_t size = form.is_e8m0 ? 1 : 4;
    const char* of_group = form.pointers != nullptr
                               ? static_cast<const char*>(form.pointers[tile.group])
                               : form.data + tile.group * form.group_stride * size;
    data = of_group + tile.line * form.begin_stride * size;
  }

  // Of index first + at, for block `block` of K; zero behind the last.
  __device__ __forceinline__ uint32_t load(int at, int block) const {
    return first + at < end ? read_scale(data, place(at, block), form.is_e8m0) : 0;
  }
  // The same into shared memory, of scales in f32.
  __device__ __forceinline__ void copy(uint32_t to, int at, int block) const {
    ptx::cp_async_4_below(to, static_cast<const float*>(data) + place(at, block), first + at, end);
  }

 private:
  __device__ __forceinline__ int64_t place(int at, int block) const {
    const int outer = form.outer_block == 1 ? first + at : (first + at) / 128;
    return outer * form.outer_stride + block * form.inner_stride;
  }
};

// Of a tile, a block of K after the other; by a warp.
template <typename Traits>
class RowTileScales {
 public:
  static constexpr bool kCopies = true;
  static constexpr int kA = Traits::kRowsA / 32;  // a lane's
  static constexpr int kB = (kScalesB<Traits> + 31) / 32;
  struct Loaded {
    uint32_t a[kA];
    uint32_t b[kB];
  };

  __device__ __forceinline__ RowTileScales(const GroupedArguments& args, const GroupedTile& tile)
      : a_(args.a_scales, tile, tile.k, tile.end_k), b_(args.b_scales, tile, tile.n, tile.end_n) {}

  // Whether the scales lie in memory as they are wanted, so that nobody has to wait for them.
  __device__ __forceinline__ bool copies() const { return !a_.form.is_e8m0 && !b_.form.is_e8m0; }

  // Those of a stage, which they fill as much as the products' operands do.
  __device__ __forceinline__ void copy(int block, RowStageScales<Traits>& scales, uint32_t slot,
                                       uint32_t full) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const uint32_t a = ptx::shared_address(&scales.a[slot][lane]);
    const uint32_t b = ptx::shared_address(&scales.b[slot][lane]);
#pragma unroll
    for (int i = 0; i < kA; ++i) a_.copy(a + 128 * i, lane + 32 * i, block);
#pragma unroll
    for (int i = 0; i < kB; ++i) {
      if (lane + 32 * i < kScalesB<Traits>) {
        b_.copy(b + 128 * i, (lane + 32 * i) * kColumnsEach, block);
      }
    }
    ptx::cp_async_arrive(full);
  }

  __device__ __forceinline__ Loaded load(int block) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    Loaded loaded;
#pragma unroll
    for (int i = 0; i < kA; ++i) loaded.a[i] = a_.load(lane + 32 * i, block);
#pragma unroll
    for (int i = 0; i < kB; ++i) {
      const int at = lane + 32 * i;
      loaded.b[i] = at < kScalesB<Traits> ? b_.load(at * kColumnsEach, block) : 0;
    }
    return loaded;
  }

  __device__ __forceinline__ void store(const Loaded& loaded, RowStageScales<Traits>& scales,
                                        uint32_t slot) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kA; ++i) {
      scales.a[slot][lane + 32 * i] = scale_of(loaded.a[i], a_.form.is_e8m0);
    }
#pragma unroll
    for (int i = 0; i < kB; ++i) {
      const int at = lane + 32 * i;
      if (at < kScalesB<Traits>) scales.b[slot][at] = scale_of(loaded.b[i], b_.form.is_e8m0);
    }
  }

 private:
  static constexpr int kColumnsEach = Traits::kWidth / kScalesB<Traits>;
  ScaleWalk a_;
  ScaleWalk b_;
};

// One scale for each row and column of a tile: what its sums are multiplied with at its end.
template <typename Traits>
struct RowInputs {
  struct OfTile {
    float a[Traits::kRowsA];
    alignas(16) float b[Traits::kWidth];
  };
  OfTile tiles[Traits::kInputs];
  uint64_t full[Traits::kInputs];
  uint64_t empty[Traits::kInputs];

  __device__ void init() {
    init_barriers(full, 32);
    init_barriers(empty, 128 * Traits::kSharers);
  }

  // One warp.
  __device__ __forceinline__ void load(const GroupedArguments& args, const GroupedTile& tile,
                                       const Cursor<Traits::kInputs>& cursor) {
    const ScaleWalk a(args.a_scales, tile, tile.k, tile.end_k);
    const ScaleWalk b(args.b_scales, tile, tile.n, tile.end_n);
    const int lane = static_cast<int>(threadIdx.x % 32);
    uint32_t of_a[Traits::kRowsA / 32];
    uint32_t of_b[Traits::kWidth / 32];
#pragma unroll
    for (int i = 0; i < Traits::kRowsA / 32; ++i) of_a[i] = a.load(lane + 32 * i, 0);
#pragma unroll
    for (int i = 0; i < Traits::kWidth / 32; ++i) of_b[i] = b.load(lane + 32 * i, 0);
    const uint32_t slot = cursor.slot();
    ptx::mbarrier_wait(ptx::shared_address(&empty[slot]), cursor.parity() ^ 1);
#pragma unroll
    for (int i = 0; i < Traits::kRowsA / 32; ++i) {
      tiles[slot].a[lane + 32 * i] = scale_of(of_a[i], args.a_scales.is_e8m0);
    }
#pragma unroll
    for (int i = 0; i < Traits::kWidth / 32; ++i) {
      tiles[slot].b[lane + 32 * i] = scale_of(of_b[i], args.b_scales.is_e8m0);
    }
    ptx::mbarrier_arrive(ptx::shared_address(&full[slot]));  // each lane: its own writes
  }

  // A consumer thread: sums become (sum * scale of the row) * scale of the column.
  __device__ __forceinline__ void apply(const ConsumerPlace& place,
                                        const Cursor<Traits::kInputs>& cursor,
                                        float (&sums)[Traits::kWidth / 2]) {
    const uint32_t slot = cursor.slot();
    ptx::mbarrier_wait(ptx::shared_address(&full[slot]), cursor.parity());
    const int row = place.warpgroup * kBlockRows + place.warp() * 16 + place.lane() / 4;
    const float of_row[2] = {tiles[slot].a[row], tiles[slot].a[row + 8]};
#pragma unroll
    for (int j = 0; j < Traits::kWidth / 8; ++j) {
      const float2 of_column =
          *reinterpret_cast<const float2*>(&tiles[slot].b[8 * j + place.lane() % 4 * 2]);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sums[4 * j + 2 * h] = sums[4 * j + 2 * h] * of_row[h] * of_column.x;
        sums[4 * j + 2 * h + 1] = sums[4 * j + 2 * h + 1] * of_row[h] * of_column.y;
      }
    }
    ptx::mbarrier_arrive(ptx::shared_address(&empty[slot]));
  }
};

}  // namespace cadre::sm90
