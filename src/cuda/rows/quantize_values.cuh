// What quantize's kernels are asked, and the values of a tile: loaded, activated, weighed, and the
// largest of them.
#pragma once

#include <limits>

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

/// Where a warp's rows come from; a row that isn't there is zero. A lane looks for one of them.
struct SourceRows {
  int64_t mine = -1;  ///< of row lane % 8; -1: none
  uint32_t valid = 0;

  __device__ __forceinline__ SourceRows(const QuantizeArguments& args, const Band& band,
                                        const TilePlace& place) {
    const int row = place.row(place.col_block % kRows);
    if (band.group >= 0 && row < band.rows) {
      mine = band.row + row;
      if (args.source_row.data != nullptr) {
        mine = checked_row(args.source_row.row_at(mine), args.num_sources, args.fault);
      }
    }
    valid = __ballot_sync(0xffffffffu, mine >= 0);
  }
  __device__ __forceinline__ bool has(int i) const { return (valid >> i & 1u) != 0; }
  /// The whole warp.
  __device__ __forceinline__ int64_t row(int i) const { return __shfl_sync(0xffffffffu, mine, i); }
};

/// A thread's elements.
using TileValues = float[kRows][kColumns];

/// All rows of a thread are asked for before any is used.
template <typename T>
__device__ __forceinline__ void load_plain(const QuantizeArguments& args, const SourceRows& from,
                                           const T* data, int count, TileValues& values) {
  const RowView& x = args.x.gate;
  RawColumns<T> raw[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int64_t row = from.row(i);
    raw[i] = {};
    if (from.has(i)) raw[i] = load_raw(data + row * x.row_stride, x.col_stride, count, x.vectors);
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) values[i][j] = sm80::widen<float>(raw[i].values[j]);
  }
}

/// Gates and up parts as they lie: interleaved ones are two runs of columns.
template <typename T>
struct RawGates {
  RawColumns<T> first, second;

  __device__ __forceinline__ static RawGates load(const GateViews& views, int64_t row, int64_t col,
                                                  int count) {
    const auto run = [&](const RowView& view, int64_t at, int columns) {
      const T* const from =
          reinterpret_cast<const T*>(view.data) + row * view.row_stride + at * view.col_stride;
      return load_raw(from, view.col_stride, columns, view.vectors);
    };
    if (views.gated && views.interleaved) {
      return {run(views.gate, 2 * col, 2 * count),
              run(views.gate, 2 * col + kColumns, 2 * count - kColumns)};
    }
    return {run(views.gate, col, count), views.gated ? run(views.up, col, count) : RawColumns<T>{}};
  }
  __device__ __forceinline__ float gate(const GateViews& views, int j) const {
    if (!views.gated || !views.interleaved) return sm80::widen<float>(first.values[j]);
    return sm80::widen<float>(j < 2 ? first.values[2 * j] : second.values[2 * j - kColumns]);
  }
  __device__ __forceinline__ float up(const GateViews& views, int j) const {
    if (!views.gated) return 1;
    if (!views.interleaved) return sm80::widen<float>(second.values[j]);
    return sm80::widen<float>(j < 2 ? first.values[2 * j + 1]
                                    : second.values[2 * j + 1 - kColumns]);
  }
};

/// Gates and up parts of two rows first, so that what loads them exists once and not for each
/// kind.
template <typename T>
__device__ __forceinline__ void load_activated(const QuantizeArguments& args,
                                               const SourceRows& from, int64_t col, int count,
                                               TileValues& values) {
  constexpr int kAtOnce = 4;
  const ClampParameters<float> clamp(args.activation);
#pragma unroll
  for (int first = 0; first < kRows; first += kAtOnce) {
    RawGates<T> raw[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t row = from.row(first + i);
      raw[i] = {};
      if (from.has(first + i)) raw[i] = RawGates<T>::load(args.x, row, col, min(count, kColumns));
    }
    with_gated_kind(args.activation.kind, [&](auto kind) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
          const float result = activate_with<decltype(kind)::value>(raw[i].gate(args.x, j),
                                                                    raw[i].up(args.x, j), clamp)
                                   .value;
          // What isn't there is zero, whatever the function of zero is.
          values[first + i][j] = from.has(first + i) && j < count ? result : 0.0f;
        }
      }
    });
  }
}

template <typename T, bool kActivated>
__device__ __forceinline__ void load_values(const QuantizeArguments& args, const Band& band,
                                            const TilePlace& place, int64_t first_col,
                                            TileValues& values) {
  const SourceRows from(args, band, place);
  const int64_t col = first_col + place.col();
  const int count = static_cast<int>(min(args.width - col, int64_t{kColumns}));
  if (kActivated) {
    load_activated<T>(args, from, col, count, values);
  } else {
    const RowView& x = args.x.gate;
    const T* const data = reinterpret_cast<const T*>(x.data) +
                          max(band.group, 0) * args.x_group_stride + col * x.col_stride;
    load_plain<T>(args, from, data, count, values);
  }
  if (args.row_scale.data == nullptr) return;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    if (!from.has(i)) continue;
    const float scale = element<float>(args.row_scale, band.row + place.row(i), 0);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) values[i][j] = product(values[i][j], scale);
  }
}

/// f(magnitude) with what the amaxes are made of: finite magnitudes. fmaxf drops NaN.
template <typename F>
__device__ __forceinline__ void with_magnitudes(bool finite, F f) {
  if (finite) {
    f([](float value) { return fabsf(value); });
  } else {
    f([](float value) { return finite_magnitude(value); });
  }
}

/// Of a thread's columns, and whether none of its values is infinite.
struct ColumnAmaxes {
  float of[kColumns];
  bool finite = true;

  __device__ __forceinline__ explicit ColumnAmaxes(const TileValues& values) {
    raise(values);
    if (largest() != std::numeric_limits<float>::infinity()) return;
    finite = false;
    raise(values);
  }
  __device__ __forceinline__ float largest() const {
    return fmaxf(fmaxf(of[0], of[1]), fmaxf(of[2], of[3]));
  }

 private:
  __device__ __forceinline__ void raise(const TileValues& values) {
    with_magnitudes(finite, [&](auto magnitude) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        of[j] = 0;
#pragma unroll
        for (int i = 0; i < kRows; ++i) of[j] = fmaxf(of[j], magnitude(values[i][j]));
      }
    });
  }
};

/// Over the warp.
__device__ __forceinline__ float largest_of_lanes(float value) {
  // Magnitudes have the order of their bits.
  return std::bit_cast<float>(__reduce_max_sync(0xffffffffu, std::bit_cast<uint32_t>(value)));
}

/// The row whose amax largest_of_rows() leaves in a lane.
__device__ __forceinline__ int row_of_lane() {
  const int lane = static_cast<int>(threadIdx.x);
  return (lane & 1) * 4 + (lane & 2) + (lane >> 2 & 1);
}

/// The amaxes of eight rows over the lanes that share a block of columns, eight or all 32, one of
/// them in each lane: with every step a lane keeps half of its rows.
__device__ __forceinline__ float largest_of_rows(const TileValues& values, bool finite,
                                                 bool all_lanes) {
  const int lane = static_cast<int>(threadIdx.x);
  float four[4];
  float others[4];
  with_magnitudes(finite, [&](auto magnitude) {
    const auto of = [&](int i) {
      return fmaxf(fmaxf(magnitude(values[i][0]), magnitude(values[i][1])),
                   fmaxf(magnitude(values[i][2]), magnitude(values[i][3])));
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float low = fmaxf(of(i), 0.0f);
      const float high = fmaxf(of(i + 4), 0.0f);
      four[i] = lane & 1 ? high : low;
      others[i] = lane & 1 ? low : high;
    }
  });
#pragma unroll
  for (int i = 0; i < 4; ++i) four[i] = fmaxf(four[i], __shfl_xor_sync(0xffffffffu, others[i], 1));
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float other = __shfl_xor_sync(0xffffffffu, lane & 2 ? four[i] : four[i + 2], 2);
    two[i] = fmaxf(lane & 2 ? four[i + 2] : four[i], other);
  }
  const float other = __shfl_xor_sync(0xffffffffu, lane & 4 ? two[0] : two[1], 4);
  float one = fmaxf(lane & 4 ? two[1] : two[0], other);
  if (all_lanes) {
    one = fmaxf(one, __shfl_xor_sync(0xffffffffu, one, 8));
    one = fmaxf(one, __shfl_xor_sync(0xffffffffu, one, 16));
  }
  return one;
}

/// What the lane that shares this one's columns has for row i.
__device__ __forceinline__ float of_row(float mine, int i) {
  const int source = (static_cast<int>(threadIdx.x) & 24) + (i >> 2 & 1) + (i & 2) + (i & 1) * 4;
  return __shfl_sync(0xffffffffu, mine, source);
}

}  // namespace cadre::rows
