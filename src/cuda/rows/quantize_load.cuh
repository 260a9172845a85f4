// The values of a tile: loaded by index or as they lie, activated, times the scales of their rows.
#pragma once

#include "cuda/rows/quantize_values.cuh"

namespace cadre::rows {

/// What lane i of the sixteen that share eight rows has. The whole warp.
template <typename V>
__device__ __forceinline__ V of_lane(V value, int i) {
  return __shfl_sync(0xffffffffu, value, (static_cast<int>(threadIdx.x) & 16) + i);
}

/// Where a thread's rows come from; a row that isn't there is zero. Of sixteen lanes each looks for
/// one of eight.
struct SourceRows {
  int64_t first;
  int64_t mine = -1;  ///< by index: of row lane % 8; -1: none
  uint32_t valid;     ///< a bit for each row

  __device__ __forceinline__ SourceRows(const QuantizeArguments& args, const Band& band,
                                        const TilePlace& place)
      : first(band.row + place.row(0)) {
    const int rows = band.group < 0 ? 0 : max(band.rows - place.row(0), 0);
    valid = rows >= kRows ? 0xffu : (1u << rows) - 1;
    if (args.source_row.data == nullptr) return;
    const int i = place.col_block % kRows;
    if (i < rows) {
      mine = checked_row(args.source_row.row_at(first + i), args.num_sources, args.fault);
    }
    valid = __ballot_sync(0xffffffffu, mine >= 0) >> (threadIdx.x & 16u) & 0xffu;
  }
  __device__ __forceinline__ bool has(int i) const { return (valid >> i & 1u) != 0; }
  /// The whole warp.
  __device__ __forceinline__ int64_t row(const QuantizeArguments& args, int i) const {
    if (args.source_row.data == nullptr) return first + i;
    return of_lane(mine, i);
  }
};

/// The bits of `count` elements, at most eight; zeros behind them.
template <typename T>
__device__ __forceinline__ void load_words(const RowView& view, int64_t row, int64_t col, int count,
                                           uint32_t (&words)[TileValues<T>::kWords]) {
  const T* const from =
      reinterpret_cast<const T*>(view.data) + row * view.row_stride + col * view.col_stride;
  if (view.vectors && count >= kColumns) {
#pragma unroll
    for (int i = 0; i < TileValues<T>::kWords; i += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[i / 4];
      words[i] = four.x;
      words[i + 1] = four.y;
      words[i + 2] = four.z;
      words[i + 3] = four.w;
    }
    return;
  }
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  constexpr int kOfWord = TileValues<T>::kOfWord;
  // Rare, so short: the last one first, and all move up by one in each step.
#pragma unroll
  for (uint32_t& word : words) word = 0;
#pragma unroll 1
  for (int j = min(count, kColumns) - 1; j >= 0; --j) {
    const uint32_t bits = reinterpret_cast<const Bits*>(from)[j * view.col_stride];
#pragma unroll
    for (int w = TileValues<T>::kWords - 1; w > 0; --w) {
      words[w] = kOfWord == 2 ? __funnelshift_l(words[w - 1], words[w], 16) : words[w - 1];
    }
    words[0] = kOfWord == 2 ? words[0] << 16 | bits : bits;
  }
}

/// Numbers as they are. All rows of a thread are asked for before any is used.
template <typename T>
__device__ __forceinline__ void load_values(const QuantizeArguments& args, const Band& band,
                                            const TilePlace& place, int64_t first_col,
                                            TileValues<T>& values) {
  const SourceRows from(args, band, place);
  const int64_t col = first_col + place.col();
  const int count = static_cast<int>(min(args.width - col, int64_t{kColumns}));
  RowView x = args.x.gate;
  x.data += max(band.group, 0) * args.x_group_stride * static_cast<int64_t>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = from.row(args, i);
#pragma unroll
    for (uint32_t& word : values.words[i]) word = 0;
    if (from.has(i)) load_words<T>(x, row, col, count, values.words[i]);
  }
}

/// Eight gates of a row and their up parts, ones where there is no gate.
template <typename T>
struct Gates {
  static constexpr int kWords = TileValues<T>::kWords;
  uint32_t gate[kWords];
  uint32_t up[kWords];

  /// As they lie: interleaved ones are two runs of columns.
  __device__ __forceinline__ void load(const GateViews& views, int64_t row, int64_t col,
                                       int count) {
    if (views.gated && views.interleaved) {
      load_words<T>(views.gate, row, 2 * col, 2 * count, gate);
      load_words<T>(views.gate, row, 2 * col + kColumns, 2 * count - kColumns, up);
      return;
    }
    load_words<T>(views.gate, row, col, count, gate);
    if (views.gated) load_words<T>(views.up, row, col, count, up);
  }
  /// Puts gates and up parts apart.
  __device__ __forceinline__ void arrange(const GateViews& views) {
    if (!views.gated) {
      constexpr uint32_t kOne = std::is_same_v<T, __half>  ? 0x3c003c00u
                                : std::is_same_v<T, float> ? 0x3f800000u
                                                           : 0x3f803f80u;
#pragma unroll
      for (uint32_t& word : up) word = kOne;
    } else if (views.interleaved) {
      uint32_t lying[2 * kWords];
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        lying[w] = gate[w];
        lying[kWords + w] = up[w];
      }
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const uint32_t a = lying[2 * w];
        const uint32_t b = lying[2 * w + 1];
        gate[w] = sizeof(T) == 2 ? __byte_perm(a, b, 0x5410) : a;
        up[w] = sizeof(T) == 2 ? __byte_perm(a, b, 0x7632) : b;
      }
    }
  }
};

/// Activations of rows, times the rows' scales, in f32. A real loop, whose results move up by some
/// rows in each step, so that the code of every kind exists for those rows alone.
template <typename T>
__device__ __forceinline__ void load_computed(const QuantizeArguments& args, const Band& band,
                                              const TilePlace& place, int64_t first_col,
                                              TileValues<float>& values) {
  constexpr int kAtOnce = sizeof(T) == 2 ? kRows / 2 : kRows / 8;
  using Source = TileValues<T>;
  const SourceRows from(args, band, place);
  const int64_t col = first_col + place.col();
  const int count = static_cast<int>(min(args.width - col, int64_t{kColumns}));
  const ClampParameters<float> clamp(args.activation);
  // Of row lane % 8. A product with 1 is exact.
  float my_scale = 1;
  const int my_row = place.row(place.col_block % kRows);
  if (args.row_scale.data != nullptr && band.group >= 0 && my_row < band.rows) {
    my_scale = element<float>(args.row_scale, band.row + my_row, 0);
  }
#pragma unroll 1
  for (int first = 0; first < kRows; first += kAtOnce) {
#pragma unroll
    for (int i = 0; i < kRows - kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) values.words[i][j] = values.words[i + kAtOnce][j];
    }
    Gates<T> gates[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t row = from.row(args, first + i);
      gates[i] = {};
      if (from.has(first + i)) gates[i].load(args.x, row, col, min(count, kColumns));
    }
    with_gated_kind(args.activation.kind, [&](auto kind) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float scale = of_lane(my_scale, first + i);
        gates[i].arrange(args.x);
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const int w = j / Source::kOfWord;
          const int part = j % Source::kOfWord;
          const float result =
              activate_with<decltype(kind)::value>(Source::number(gates[i].gate[w], part),
                                                   Source::number(gates[i].up[w], part), clamp)
                  .value;
          values.words[kRows - kAtOnce + i][j] = std::bit_cast<uint32_t>(product(result, scale));
        }
      }
    });
  }
  if (from.valid != 0xffu || count < kColumns) {
    // What isn't there is zero, whatever the function of zero is.
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if (!from.has(i) || j >= count) values.words[i][j] = 0;
      }
    }
  }
}

}  // namespace cadre::rows
