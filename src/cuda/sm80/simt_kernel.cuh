// The general kernel: operands of any types and strides are widened into shared memory, then
// multiplied in f32 or f64 by ordinary fused multiply-adds, or in tf32 by the tensor cores. Every
// output has one accumulator over ascending K.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/ptx/mma_sync.cuh"
#include "cuda/sm80/elements.cuh"
#include "cuda/sm80/epilogue.cuh"
#include "cuda/sm80/indexed_rows.cuh"
#include "cuda/sm80/tile_finder.cuh"
#include "cuda/sm80/zero_rows.cuh"

namespace cadre::sm80 {

/// kThread x kThread outputs a thread, 16 x 16 threads.
template <typename Compute_, int kThread_, int kBlockK_>
struct SimtTraits {
  using Compute = Compute_;
  static constexpr int kThread = kThread_;
  static constexpr int kTile = 16 * kThread;
  static constexpr int kBlockK = kBlockK_;
  static constexpr int kThreads = 256;
  static constexpr int kPitch = kTile + 16 / static_cast<int>(sizeof(Compute));
  static constexpr int kSharedBytes = 2 * kBlockK * kPitch * static_cast<int>(sizeof(Compute));
};

/// An operand seen from a tile: [extent, k] with any strides, in elements.
struct StridedSource {
  const char* data;
  DType dtype;
  int64_t outer_stride;
  int64_t k_stride;
  int64_t extent;
};

/// The same with rows by index: `data` is that of the tensor's first row.
template <bool kRowsAlongK>
struct IndexedSource : StridedSource {
  std::conditional_t<kRowsAlongK, RowsAlongK, IndexedRows> rows;

  static constexpr int64_t kNone = INT64_MIN;

  /// Elements from the first one on; kNone: a zero.
  __device__ __forceinline__ int64_t offset(int64_t outer, int64_t k) const {
    const int32_t row = rows.at(kRowsAlongK ? k : outer);
    if (row == IndexedRows::kNone) return kNone;
    return (kRowsAlongK ? outer : row) * outer_stride + (kRowsAlongK ? row : k) * k_stride;
  }
};

/// Elements of one block of K that a thread brings: kept in registers while the block before is
/// multiplied.
template <typename Traits>
struct StagedBlock {
  using Compute = typename Traits::Compute;
  static constexpr int kCount = Traits::kTile * Traits::kBlockK / Traits::kThreads;
  Compute values[kCount];

  /// The place of element i of this thread: neighbours in a warp lie along the dimension that is
  /// contiguous in memory.
  template <typename Source>
  __device__ __forceinline__ static void place(const Source& source, int i, int* outer, int* k) {
    const int index = i * Traits::kThreads + static_cast<int>(threadIdx.x);
    const bool along_k = source.k_stride == 1;
    *outer = along_k ? index / Traits::kBlockK : index % Traits::kTile;
    *k = along_k ? index % Traits::kBlockK : index / Traits::kTile;
  }

  __device__ __forceinline__ void load(const StridedSource& source, int64_t k_begin,
                                       int64_t k_end) {
    with_type(source.dtype, [&]<typename T>(T) {
      const T* data = reinterpret_cast<const T*>(source.data);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        int outer = 0;
        int k = 0;
        place(source, i, &outer, &k);
        const bool valid = outer < source.extent && k_begin + k < k_end;
        values[i] = valid ? widen<Compute>(
                                data[outer * source.outer_stride + (k_begin + k) * source.k_stride])
                          : Compute{};
      }
    });
  }

  /// All rows are found before the first element is read.
  template <bool kRowsAlongK>
  __device__ __forceinline__ void load(const IndexedSource<kRowsAlongK>& source, int64_t k_begin,
                                       int64_t k_end) {
    constexpr int64_t kNone = IndexedSource<kRowsAlongK>::kNone;
    int64_t offsets[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      int outer = 0;
      int k = 0;
      place(source, i, &outer, &k);
      const bool valid = outer < source.extent && k_begin + k < k_end;
      offsets[i] = valid ? source.offset(outer, k_begin + k) : kNone;
    }
    with_type(source.dtype, [&]<typename T>(T) {
      const T* data = reinterpret_cast<const T*>(source.data);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        values[i] = offsets[i] != kNone ? widen<Compute>(data[offsets[i]]) : Compute{};
      }
    });
  }

  /// From a source that makes a value itself.
  template <typename Source>
  __device__ __forceinline__ void load(const Source& source, int64_t k_begin, int64_t k_end) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      int outer = 0;
      int k = 0;
      place(source, i, &outer, &k);
      const bool valid = outer < source.extent && k_begin + k < k_end;
      values[i] = valid ? source.value(outer, k_begin + k) : Compute{};
    }
  }

  template <bool kTf32, typename Source>
  __device__ __forceinline__ void store(const Source& source, Compute* shared) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      int outer = 0;
      int k = 0;
      place(source, i, &outer, &k);
      Compute value = values[i];
      if constexpr (kTf32) value = ptx::round_to_tf32(value);
      shared[k * Traits::kPitch + outer] = value;
    }
  }
};

template <typename Traits>
__device__ __forceinline__ StridedSource source_a(const ProductArguments& args,
                                                  const GroupEntry& entry, const ProductTile& tile,
                                                  int element_bytes) {
  const int64_t m_stride = args.a_rows_along_k ? args.a_col_stride : entry.a_row_stride;
  const int64_t k_stride = args.a_rows_along_k ? entry.a_row_stride : args.a_col_stride;
  return {entry.a + int64_t{tile.row_tile} * Traits::kTile * m_stride * element_bytes, args.a_dtype,
          m_stride, k_stride, entry.m - int64_t{tile.row_tile} * Traits::kTile};
}

template <typename Traits>
__device__ __forceinline__ StridedSource source_b(const ProductArguments& args,
                                                  const GroupEntry& entry, const ProductTile& tile,
                                                  int element_bytes) {
  const int64_t n_stride = args.b_rows_along_n ? entry.b_row_stride : args.b_col_stride;
  const int64_t k_stride = args.b_rows_along_n ? args.b_col_stride : entry.b_row_stride;
  return {entry.b + int64_t{tile.col_tile} * Traits::kTile * n_stride * element_bytes, args.b_dtype,
          n_stride, k_stride, entry.n - int64_t{tile.col_tile} * Traits::kTile};
}

/// Where the kernel's operands come from.
struct PlainSources {
  static constexpr int kResidentBlocks = 0;  ///< of a multiprocessor at least; 0: not asked for

  template <typename Traits>
  __device__ __forceinline__ static StridedSource a(const ProductArguments& args,
                                                    const GroupEntry& entry,
                                                    const ProductTile& tile) {
    return source_a<Traits>(args, entry, tile, args.a_element_bytes);
  }
  template <typename Traits>
  __device__ __forceinline__ static StridedSource b(const ProductArguments& args,
                                                    const GroupEntry& entry,
                                                    const ProductTile& tile) {
    return source_b<Traits>(args, entry, tile, args.b_element_bytes);
  }
};

/// The same with rows by index.
template <ByIndex kByIndex>
struct IndexedSources : PlainSources {
  static constexpr bool kRowsAlongK = kByIndex == ByIndex::kRowsAlongK;

  template <typename Traits>
  __device__ __forceinline__ static IndexedSource<kRowsAlongK> a(const ProductArguments& args,
                                                                 const GroupEntry& entry,
                                                                 const ProductTile& tile) {
    StridedSource elements = PlainSources::a<Traits>(args, entry, tile);
    if (kRowsAlongK) return {elements, {args.a_index, entry.row_begin}};
    elements.data = entry.a;
    return {elements, {args.a_index, entry.row_begin + int64_t{tile.row_tile} * Traits::kTile}};
  }
  template <typename Traits>
  __device__ __forceinline__ static auto b(const ProductArguments& args, const GroupEntry& entry,
                                           const ProductTile& tile) {
    const StridedSource elements = PlainSources::b<Traits>(args, entry, tile);
    if constexpr (kRowsAlongK) {
      return IndexedSource<true>{elements, {args.b_index, entry.row_begin}};
    } else {
      return elements;
    }
  }
};

/// Thread (tx, ty) of 16 x 16 holds rows ty * kThread + i, columns tx * kThread + j.
template <typename Traits>
struct SimtMath {
  using Compute = typename Traits::Compute;
  static constexpr bool kTf32 = false;
  Compute acc[Traits::kThread][Traits::kThread] = {};

  __device__ __forceinline__ void multiply(const Compute* a, const Compute* b, int depth) {
    const int tx = static_cast<int>(threadIdx.x) % 16 * Traits::kThread;
    const int ty = static_cast<int>(threadIdx.x) / 16 * Traits::kThread;
#pragma unroll 4
    for (int k = 0; k < depth; ++k) {
      Compute x[Traits::kThread];
      Compute y[Traits::kThread];
#pragma unroll
      for (int i = 0; i < Traits::kThread; ++i) {
        x[i] = a[k * Traits::kPitch + ty + i];
        y[i] = b[k * Traits::kPitch + tx + i];
      }
#pragma unroll
      for (int i = 0; i < Traits::kThread; ++i) {
#pragma unroll
        for (int j = 0; j < Traits::kThread; ++j) acc[i][j] = fma(x[i], y[j], acc[i][j]);
      }
    }
  }

  __device__ __forceinline__ void store(const ProductArguments& args, const GroupEntry& entry,
                                        const ProductTile& tile) const {
    const int tx = static_cast<int>(threadIdx.x) % 16 * Traits::kThread;
    const int ty = static_cast<int>(threadIdx.x) / 16 * Traits::kThread;
    const int64_t col = int64_t{tile.col_tile} * Traits::kTile + tx;
#pragma unroll 1
    for (int i = 0; i < Traits::kThread; ++i) {
      const int64_t row = int64_t{tile.row_tile} * Traits::kTile + ty + i;
      if (row >= entry.m || col >= entry.n) return;
      Compute run[kRun] = {};
#pragma unroll
      for (int pick = 0; pick < Traits::kThread; ++pick) {
        if (pick != i) continue;
#pragma unroll
        for (int j = 0; j < Traits::kThread; ++j) run[j] = acc[pick][j];
      }
      finish_run<Compute, Traits::kThread>(args, entry, row, col, run);
    }
  }
};

/// Warp w of 2 x 4 holds the 64x32 outputs at (w % 2 * 64, w / 2 * 32), as 4 x 4 tiles of 16x8.
template <typename Traits>
struct Tf32Math {
  static constexpr bool kTf32 = true;
  static_assert(Traits::kTile == 128 && Traits::kBlockK % 8 == 0);
  float acc[4][4][4] = {};

  __device__ __forceinline__ void multiply(const float* a, const float* b, int depth) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
    // A pitch of 8 mod 32 words: the 4 x 8 words of a fragment lie in 32 different banks.
    const float* from_a = a + lane % 4 * Traits::kPitch + warp % 2 * 64 + lane / 4;
    const float* from_b = b + lane % 4 * Traits::kPitch + warp / 2 * 32 + lane / 4;
    for (int k = 0; k < depth; k += 8) {
      uint32_t x[4][4];
      uint32_t y[4][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* at = from_a + k * Traits::kPitch + 16 * i;
        x[i][0] = __float_as_uint(at[0]);
        x[i][1] = __float_as_uint(at[8]);
        x[i][2] = __float_as_uint(at[4 * Traits::kPitch]);
        x[i][3] = __float_as_uint(at[4 * Traits::kPitch + 8]);
        const float* bt = from_b + k * Traits::kPitch + 8 * i;
        y[i][0] = __float_as_uint(bt[0]);
        y[i][1] = __float_as_uint(bt[4 * Traits::kPitch]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::mma_tf32(acc[i][j], x[i], y[j][0], y[j][1]);
      }
    }
  }

  __device__ __forceinline__ void store(const ProductArguments& args, const GroupEntry& entry,
                                        const ProductTile& tile) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll 1
    for (int step = 0; step < 32; ++step) {
      const int64_t row = int64_t{tile.row_tile} * Traits::kTile + warp % 2 * 64 + step / 8 * 16 +
                          step / 4 % 2 * 8 + lane / 4;
      const int64_t col =
          int64_t{tile.col_tile} * Traits::kTile + warp / 2 * 32 + step % 4 * 8 + lane % 4 * 2;
      float run[kRun] = {};
#pragma unroll
      for (int pick = 0; pick < 32; ++pick) {
        if (pick != step) continue;
        run[0] = acc[pick / 8][pick % 4][pick / 4 % 2 * 2];
        run[1] = acc[pick / 8][pick % 4][pick / 4 % 2 * 2 + 1];
      }
      if (row < entry.m && col < entry.n) finish_run<float, 2>(args, entry, row, col, run);
    }
  }
};

template <typename Traits, template <typename> typename Math, typename Sources>
__global__ void __launch_bounds__(Traits::kThreads, Sources::kResidentBlocks)
    simt_kernel(const __grid_constant__ ProductArguments args) {
  using Compute = typename Traits::Compute;
  __shared__ Compute shared_a[Traits::kBlockK * Traits::kPitch];
  __shared__ Compute shared_b[Traits::kBlockK * Traits::kPitch];
  ProductTile tile;
  for (int index = static_cast<int>(blockIdx.x); find_tile(args, index, &tile);
       index += static_cast<int>(gridDim.x)) {
    const GroupEntry& entry = args.table.entries[tile.group];
    const auto a = Sources::template a<Traits>(args, entry, tile);
    const auto b = Sources::template b<Traits>(args, entry, tile);
    const int64_t k = entry.k;
    Math<Traits> math;
    StagedBlock<Traits> next_a;
    StagedBlock<Traits> next_b;
    next_a.load(a, 0, k);
    next_b.load(b, 0, k);
#pragma unroll 1
    for (int64_t begin = 0; begin < k; begin += Traits::kBlockK) {
      __syncthreads();  // the block before has been multiplied by all
      next_a.template store<Math<Traits>::kTf32>(a, shared_a);
      next_b.template store<Math<Traits>::kTf32>(b, shared_b);
      __syncthreads();
      if (begin + Traits::kBlockK < k) {
        next_a.load(a, begin + Traits::kBlockK, k);
        next_b.load(b, begin + Traits::kBlockK, k);
      }
      // Past the end of K there is nothing to add (zeros would turn -0 into 0).
      const int64_t left = k - begin;
      math.multiply(shared_a, shared_b,
                    left < Traits::kBlockK ? static_cast<int>(left) : Traits::kBlockK);
    }
    math.store(args, entry, tile);
  }
  zero_uncovered_rows(args);
}

}  // namespace cadre::sm80
