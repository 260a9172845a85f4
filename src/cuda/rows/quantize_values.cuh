// What quantize's kernels are asked, a thread's values of a tile, and the largest of them.
#pragma once

#include "cuda/rows/gates.cuh"
#include "cuda/rows/indices.cuh"
#include "cuda/rows/quantize_tile.cuh"

namespace cadre::rows {

/// Turns the amax of a copy into its scale; for amax itself it stays as it is.
struct ScaleMaker {
  float largest = 0;  ///< 0: amax
  ScaleRule rule{};

  static ScaleMaker of(const QuantizeArgs& args, const ScaledTensor& copy) {
    return {.largest = copy.dtype == DType::kE4M3 ? E4M3::kMax : E5M2::kMax,
            .rule = {static_cast<float>(args.amax_floor),
                     args.power_of_two || copy.scales.values.dtype == DType::kE8M0}};
  }
  __device__ __forceinline__ float of(float amax) const {
    return largest == 0 ? amax : scale_of(amax, largest, rule);
  }
  /// Of rows behind the last group.
  __device__ __forceinline__ float of_tail() const { return largest == 0 ? 0.0f : 1.0f; }
};

struct Copy {
  CodeView codes{};
  ScaleRefs scales{};
  ScaleMaker make{};

  static Copy of(const ScaledTensor& tensor, const plan::ScaleForm& form, bool transposed,
                 const ScaleMaker& make) {
    return {.codes = CodeView::of(tensor, transposed),
            .scales = ScaleRefs::of(tensor, form, transposed),
            .make = make};
  }
  __host__ __device__ bool given() const { return scales.data != nullptr; }
};

struct QuantizeArguments {
  Bands bands;
  GateViews x;
  int64_t x_group_stride;  ///< in elements
  int64_t num_sources;
  IndexView source_row;  ///< data null: rows are where they are
  RowView row_scale;     ///< the same
  Activation activation;
  Copy rows, columns;
  ScaleMode mode;
  bool square;        ///< a block of scales is a tile
  bool amaxes_alone;  ///< the pass that raises amaxes
  int64_t width;
  int64_t stripes;  ///< tiles side by side
  int32_t* fault;
};

/// Elements of a thread's rows as they lie in registers: numbers of 16 bits in pairs, so that half
/// as many registers hold them, and a comparison of magnitudes has two of them.
template <typename T>
struct TileValues {
  static constexpr int kOfWord = 4 / static_cast<int>(sizeof(T));
  static constexpr int kWords = kColumns / kOfWord;
  uint32_t words[kRows][kWords];

  __device__ __forceinline__ float at(int i, int j) const {
    return number(words[i][j / kOfWord], j % kOfWord);
  }
  /// Element j of a word.
  __device__ __forceinline__ static float number(uint32_t word, int j) {
    if constexpr (std::is_same_v<T, float>) return std::bit_cast<float>(word);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      return std::bit_cast<float>(j == 0 ? word << 16 : word & 0xffff0000u);
    }
    return __half2float(__ushort_as_half(static_cast<uint16_t>(j == 0 ? word : word >> 16)));
  }
};

/// Magnitudes of numbers, whose order is that of their bits without the sign. A word has one or
/// two.
template <typename T>
struct Magnitudes {
  static constexpr bool kPair = sizeof(T) == 2;
  static constexpr uint32_t kMask = kPair ? 0x7fff7fffu : 0x7fffffffu;
  static constexpr uint32_t kInfinite = std::is_same_v<T, __half>  ? 0x7c007c00u
                                        : std::is_same_v<T, float> ? 0x7f800000u
                                                                   : 0x7f807f80u;

  /// Those of numbers that are infinite or none are 0, unless `finite` says that there is none.
  __device__ __forceinline__ static uint32_t of(uint32_t word, bool finite) {
    const uint32_t magnitude = word & kMask;
    if (finite) return magnitude;
    if constexpr (kPair) return magnitude & __vcmpltu2(magnitude, kInfinite);
    return magnitude < kInfinite ? magnitude : 0;
  }
  __device__ __forceinline__ static uint32_t larger(uint32_t a, uint32_t b) {
    if constexpr (kPair) return __vmaxu2(a, b);
    return max(a, b);
  }
  __device__ __forceinline__ static bool finite(uint32_t magnitude) {
    if constexpr (kPair) return __vcmpgeu2(magnitude, kInfinite) == 0;
    return magnitude < kInfinite;
  }
};

/// f(finite), which is a constant in it.
template <typename F>
__device__ __forceinline__ void with_constant(bool finite, F f) {
  finite ? f(std::true_type{}) : f(std::false_type{});
}

/// Of a thread's columns, and whether all of its values are finite. Amaxes are of finite numbers.
template <typename T>
struct ColumnAmaxes {
  using Values = TileValues<T>;
  uint32_t words[Values::kWords];
  bool finite = true;

  __device__ __forceinline__ explicit ColumnAmaxes(const Values& values) {
    raise(values);
    if (Magnitudes<T>::finite(largest_word())) return;
    finite = false;
    raise(values);
  }
  __device__ __forceinline__ float largest() const {
    const uint32_t word = largest_word();
    return fmaxf(Values::number(word, 0), Values::number(word, Values::kOfWord - 1));
  }

 private:
  __device__ __forceinline__ uint32_t largest_word() const {
    uint32_t word = words[0];
#pragma unroll
    for (int w = 1; w < Values::kWords; ++w) word = Magnitudes<T>::larger(word, words[w]);
    return word;
  }
  __device__ __forceinline__ void raise(const Values& values) {
    with_constant(finite, [&](auto known) {
#pragma unroll
      for (int w = 0; w < Values::kWords; ++w) {
        words[w] = 0;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const uint32_t magnitude = Magnitudes<T>::of(values.words[i][w], known);
          words[w] = Magnitudes<T>::larger(words[w], magnitude);
        }
      }
    });
  }
};

/// Over the warp.
__device__ __forceinline__ float largest_of_lanes(float value) {
  // Magnitudes have the order of their bits.
  return std::bit_cast<float>(__reduce_max_sync(0xffffffffu, std::bit_cast<uint32_t>(value)));
}

/// A number for each of two rows of the thread's eight: row_of_lane(), and that plus 4.
struct TwoRows {
  float of[2];

  /// What the lane that shares this one's columns has for row i.
  __device__ __forceinline__ float row(int i) const {
    const int lane = (static_cast<int>(threadIdx.x) & 28) + (i >> 1 & 1) + (i & 1) * 2;
    return __shfl_sync(0xffffffffu, of[i / 4], lane);
  }
};
__device__ __forceinline__ int row_of_lane() {
  const int lane = static_cast<int>(threadIdx.x);
  return (lane & 1) * 2 + (lane >> 1 & 1);
}

/// The amaxes of eight rows over the lanes that share a block of columns, four or all sixteen, two
/// of them in each lane: with each of two steps a lane keeps half of its rows.
template <typename T>
__device__ __forceinline__ TwoRows largest_of_rows(const TileValues<T>& values, bool finite,
                                                   bool all_lanes) {
  using M = Magnitudes<T>;
  constexpr int kWords = M::kPair ? 1 : 2;  // of rows i and i + 4
  const auto larger = [](uint32_t a, uint32_t b) { return M::larger(a, b); };
  const auto from = [](uint32_t word, int mask) {
    return __shfl_xor_sync(0xffffffffu, word, mask);
  };
  const int lane = static_cast<int>(threadIdx.x);
  uint32_t four[4][kWords];
  with_constant(finite, [&](auto known) {
    const auto of = [&](int i) {
      uint32_t word = M::of(values.words[i][0], known);
#pragma unroll
      for (int w = 1; w < TileValues<T>::kWords; ++w) {
        word = larger(word, M::of(values.words[i][w], known));
      }
      return word;
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = of(i);
      const uint32_t high = of(i + 4);
      if constexpr (M::kPair) {
        four[i][0] = larger(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632));
      } else {
        four[i][0] = low;
        four[i][1] = high;
      }
    }
  });
  TwoRows amaxes;
  uint32_t one[kWords];
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    uint32_t two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t other = from(lane & 1 ? four[i][w] : four[i + 2][w], 1);
      two[i] = larger(lane & 1 ? four[i + 2][w] : four[i][w], other);
    }
    const uint32_t other = from(lane & 2 ? two[0] : two[1], 2);
    one[w] = larger(lane & 2 ? two[1] : two[0], other);
    if (all_lanes) {
      one[w] = larger(one[w], from(one[w], 4));
      one[w] = larger(one[w], from(one[w], 8));
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    amaxes.of[half] = M::kPair ? TileValues<T>::number(one[0], half)
                               : TileValues<T>::number(one[half % kWords], 0);
  }
  return amaxes;
}

}  // namespace cadre::rows
