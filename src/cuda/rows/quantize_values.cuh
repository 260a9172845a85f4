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
  int32_t* fault;
};

/// Where a thread's eight rows come from; a row that isn't there is zero.
struct SourceRows {
  const IndexView& source_row;
  int64_t first;
  uint32_t valid = 0;

  __device__ __forceinline__ SourceRows(const QuantizeArguments& args, const Band& band,
                                        const TilePlace& place)
      : source_row(args.source_row), first(band.row + place.row(0)) {
    if (band.group < 0) return;
    const int64_t limit = args.source_row.data == nullptr ? INT64_MAX : args.num_sources;
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      if (place.row(i) >= band.rows) continue;
      if (checked_row(row(i), limit, args.fault) >= 0) valid |= 1u << i;
    }
  }
  __device__ __forceinline__ bool has(int i) const { return (valid >> i & 1u) != 0; }
  /// Of a row that is there.
  __device__ __forceinline__ int64_t row(int i) const {
    return source_row.data == nullptr ? first + i : source_row.row_at(first + i);
  }
};

/// All rows of a thread are asked for before any is used.
template <typename T>
__device__ __forceinline__ void load_plain(const QuantizeArguments& args, const Band& band,
                                           const SourceRows& from, int64_t col, int count,
                                           float (&values)[kSide][kSide]) {
  const RowView& x = args.x.gate;
  const T* const data = reinterpret_cast<const T*>(x.data) +
                        max(band.group, 0) * args.x_group_stride + col * x.col_stride;
  if (x.vectors && count >= kSide) {
    constexpr int kParts = kSide * static_cast<int>(sizeof(T)) / 16;
    RawRun<T> raw[kSide];
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      raw[i] = {};
      if (!from.has(i)) continue;
      const auto* at =
          reinterpret_cast<const sm80::Vector16<T>*>(data + from.row(i) * x.row_stride);
#pragma unroll
      for (int part = 0; part < kParts; ++part) raw[i].parts[part] = at[part];
    }
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) values[i][j] = sm80::widen<float>(raw[i].at(j));
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    const T* const row = data + (from.has(i) ? from.row(i) : 0) * x.row_stride;
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      values[i][j] = 0;
      if (from.has(i) && j < count) values[i][j] = sm80::widen<float>(row[j * x.col_stride]);
    }
  }
}

/// Gates and up parts of all rows first, so that what loads them exists once and not for each kind.
template <typename T>
__device__ __forceinline__ void load_activated(const QuantizeArguments& args,
                                               const SourceRows& from, int64_t col, int count,
                                               float (&values)[kSide][kSide]) {
  const ClampParameters<float> clamp(args.activation);
  float up[kSide][kSide];
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) values[i][j] = up[i][j] = 0;
    if (from.has(i)) load_gates<T>(args.x, from.row(i), col, min(count, kSide), values[i], up[i]);
  }
  with_gated_kind(args.activation.kind, [&](auto kind) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        values[i][j] = activate_with<decltype(kind)::value>(values[i][j], up[i][j], clamp).value;
      }
    }
  });
  // What isn't there is zero, whatever the function of zero is.
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      if (!from.has(i) || j >= count) values[i][j] = 0;
    }
  }
}

template <typename T, bool kActivated>
__device__ __forceinline__ void load_values(const QuantizeArguments& args, const Band& band,
                                            const TilePlace& place, int64_t first_col,
                                            float (&values)[kSide][kSide]) {
  const SourceRows from(args, band, place);
  const int64_t col = first_col + place.col();
  const int count = static_cast<int>(min(args.width - col, int64_t{kSide}));
  if (kActivated) {
    load_activated<T>(args, from, col, count, values);
  } else {
    load_plain<T>(args, band, from, col, count, values);
  }
  if (args.row_scale.data == nullptr) return;
#pragma unroll
  for (int i = 0; i < kSide; ++i) {
    if (!from.has(i)) continue;
    const float scale = element<float>(args.row_scale, band.row + place.row(i), 0);
#pragma unroll
    for (int j = 0; j < kSide; ++j) values[i][j] = product(values[i][j], scale);
  }
}

/// Of a thread's rows and columns, finite magnitudes alone.
struct Amaxes {
  float rows[kSide] = {};
  float cols[kSide] = {};
  bool finite = true;

  __device__ __forceinline__ explicit Amaxes(const float (&values)[kSide][kSide]) {
    // fmaxf drops NaN.
    raise(values, [](float value) { return fabsf(value); });
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kSide; ++i) largest = fmaxf(largest, rows[i]);
    if (largest != kInfinity) return;
    finite = false;
#pragma unroll
    for (int i = 0; i < kSide; ++i) rows[i] = cols[i] = 0;
    raise(values, [](float value) { return finite_magnitude(value); });
  }

 private:
  template <typename Magnitude>
  __device__ __forceinline__ void raise(const float (&values)[kSide][kSide],
                                        const Magnitude& magnitude) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
#pragma unroll
      for (int j = 0; j < kSide; ++j) {
        const float m = magnitude(values[i][j]);
        rows[i] = fmaxf(rows[i], m);
        cols[j] = fmaxf(cols[j], m);
      }
    }
  }
};

/// Over `lanes` neighbours, a power of two.
__device__ __forceinline__ float largest_of_lanes(float value, int lanes) {
  for (int distance = 1; distance < lanes; distance *= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

/// amaxes[i], without an array in memory.
__device__ __forceinline__ float chosen(const float (&amaxes)[kSide], int i) {
  float amax = 0;
#pragma unroll
  for (int j = 0; j < kSide; ++j) amax = j == i ? amaxes[j] : amax;
  return amax;
}

}  // namespace cadre::rows
