// quantize, dequantize and amax on a CPU, in tiles of a band of rows and a stripe of columns: the
// largest block of scales. Scales that belong to more than a tile are made in a pass of their own
// before the tiles; then both copies of a tile are made while it is in cache.
#include "cpu/quantize.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "core/fp8_scale.h"
#include "cpu/byte_transpose.h"
#include "cpu/quantized_groups.h"
#include "cpu/row_activation.h"
#include "cpu/row_indices.h"
#include "cpu/scratch.h"

namespace cadre::cpu {
namespace {

constexpr int64_t kStripe = kStripeColumns;

/// Memory of a tile, of each thread.
struct TileMemory {
  alignas(64) float values[kBandRows * kStripe];
  alignas(64) float factors[kStripe];  ///< of columns: scales, inverses or amaxes
  alignas(64) uint8_t codes[kBandRows * kStripe];

  static TileMemory& of_this_thread() {
    Scratch* scratch = Scratch::of_this_thread();
    void* memory = scratch != nullptr ? scratch->reserve(sizeof(TileMemory)) : nullptr;
    if (memory == nullptr) throw std::bad_alloc();
    return *static_cast<TileMemory*>(memory);
  }
};

float largest_of(DType type) { return type == DType::kE4M3 ? E4M3::kMax : E5M2::kMax; }

/// Turns amaxes into scales of one copy, or, for amax, hands them on as they are.
class ScaleMaker {
 public:
  ScaleMaker() = default;
  ScaleMaker(const QuantizeArgs& args, const ScaledTensor& copy)
      : largest_(largest_of(copy.dtype)),
        rule_{static_cast<float>(args.amax_floor),
              args.power_of_two || copy.scales.values.dtype == DType::kE8M0} {}

  float operator()(float amax) const {
    return largest_ == 0 ? amax : scale_of(amax, largest_, rule_);
  }

 private:
  float largest_ = 0;
  ScaleRule rule_{};
};

/// One arrangement that is written.
struct Target {
  const ScaledTensor& tensor;
  const plan::ScaleForm& form;
  ScaleMaker make;
  bool transposed = false;
  bool has_codes = true;  ///< false: its scales alone

  GroupCodes of(const QuantizedGroups& groups, int64_t group) const {
    return transposed ? groups.in_columns(tensor, form, group)
                      : groups.in_rows(tensor, form, group);
  }
};

int64_t columns_of_stripe(int64_t width, int64_t col) { return std::min(width - col, kStripe); }

/// The rows that are quantised, in f32.
class Source {
 public:
  Source(const QuantizeArgs& args, int64_t width, const QuantizedGroups& groups,
         const StripeKernel& kernel)
      : args_(args),
        width_(width),
        activation_(row_activation(args.activation, width)),
        groups_(groups),
        kernel_(kernel) {}

  int64_t width() const { return width_; }
  int64_t stripes() const { return (width_ + kStripe - 1) / kStripe; }

  /// Columns [col, col + kStripe) of a row of a group; zeros behind the last column.
  void load(int64_t group, int64_t row, int64_t col, float* values) const {
    StripeOfRow stripe{.activation = activation_,
                       .row = groups_.plain(args_.x, group),
                       .scale = 1,
                       .col = col,
                       .count = std::min(width_ - col, kStripe)};
    const int64_t of_all = groups_.begin(group) + row;
    if (args_.source_row.given()) {
      const int64_t from = index_at(args_.source_row, of_all);
      stripe.row.data = from < 0 ? nullptr : address_at(args_.x, from, 0);
    } else {
      stripe.row.data = element_at(stripe.row, row, 0);
    }
    if (args_.row_scale.given()) {
      stripe.scale = static_cast<float>(number_at(args_.row_scale, of_all));
    }
    kernel_.load(stripe, values);
  }

 private:
  const QuantizeArgs& args_;
  int64_t width_;
  RowActivation activation_;
  const QuantizedGroups& groups_;
  const StripeKernel& kernel_;
};

class Quantizer {
 public:
  Quantizer(const QuantizedGroups& groups, const Source& source, const StripeKernel& kernel,
            RowThreads& threads)
      : groups_(groups), source_(source), kernel_(kernel), threads_(threads) {}

  void run(const std::vector<Target>& targets, ScaleMode mode, int64_t m) {
    if (mode == ScaleMode::kTensor) make_tensor_scales(targets);
    if (mode == ScaleMode::kRow) {
      for (const Target& target : targets) {
        target.transposed ? make_column_scales(target) : make_row_scales(target);
      }
    }
    make_tiles(targets, mode == ScaleMode::kBlock128 || mode == ScaleMode::kMx);
    for (const Target& target : targets) {
      if (!target.transposed) clear_tail(target, mode, m);
    }
  }

 private:
  template <typename Body>
  void each_tile(const Body& body) {
    const int64_t stripes = source_.stripes();
    if (stripes == 0) return;
    threads_.each(groups_.bands() * stripes, kBandRows * kStripe, [&](int64_t unit) {
      body(groups_.band(unit / stripes), unit % stripes * kStripe);
    });
  }

  /// One scale for all groups, or one for each.
  void make_tensor_scales(const std::vector<Target>& targets) {
    std::vector<std::atomic<float>> amaxes(static_cast<size_t>(groups_.count()));
    each_tile([&](const QuantizedGroups::Band& band, int64_t col) {
      float amax = 0;
      TileMemory& tile = TileMemory::of_this_thread();
      for (int64_t r = 0; r < band.rows; ++r) {
        source_.load(band.group, band.row + r, col, tile.values);
        amax = std::max(amax, kernel_.amax(tile.values, kStripe));
      }
      std::atomic<float>& all = amaxes[static_cast<size_t>(band.group)];
      float before = all.load(std::memory_order_relaxed);
      while (before < amax && !all.compare_exchange_weak(before, amax, std::memory_order_relaxed)) {
      }
    });
    float largest = 0;
    for (const auto& amax : amaxes) largest = std::max(largest, amax.load());
    for (const Target& target : targets) {
      if (target.tensor.scales.values.shape[0] == 1) {
        target.of(groups_, 0).scales.set(0, 0, target.make(largest));
        continue;
      }
      for (int64_t group = 0; group < groups_.count(); ++group) {
        const float amax = amaxes[static_cast<size_t>(group)].load();
        target.of(groups_, group).scales.set(0, 0, target.make(amax));
      }
    }
  }

  void make_row_scales(const Target& target) {
    threads_.each(groups_.bands(), kBandRows * source_.width(), [&](int64_t index) {
      const QuantizedGroups::Band band = groups_.band(index);
      const GroupCodes copy = target.of(groups_, band.group);
      TileMemory& tile = TileMemory::of_this_thread();
      for (int64_t r = band.row; r < band.row + band.rows; ++r) {
        float amax = 0;
        for (int64_t col = 0; col < source_.width(); col += kStripe) {
          source_.load(band.group, r, col, tile.values);
          amax = std::max(amax, kernel_.amax(tile.values, kStripe));
        }
        copy.scales.set(r, 0, target.make(amax));
      }
    });
  }

  /// One scale for each column of a group.
  void make_column_scales(const Target& target) {
    const int64_t stripes = source_.stripes();
    const int64_t groups = groups_.count();
    const int64_t average_rows = groups_.tail_begin() / std::max<int64_t>(groups, 1) + 1;
    threads_.each(groups * stripes, average_rows * kStripe, [&](int64_t unit) {
      const int64_t group = unit / stripes;
      const int64_t col = unit % stripes * kStripe;
      const GroupCodes copy = target.of(groups_, group);
      TileMemory& tile = TileMemory::of_this_thread();
      std::fill_n(tile.factors, kStripe, 0.0f);
      for (int64_t r = 0; r < groups_.rows(group); ++r) {
        source_.load(group, r, col, tile.values);
        kernel_.raise_amaxes(tile.values, tile.factors);
      }
      for (int64_t c = 0; c < columns_of_stripe(source_.width(), col); ++c) {
        copy.scales.set(0, col + c, target.make(tile.factors[c]));
      }
    });
  }

  void make_tiles(const std::vector<Target>& targets, bool in_blocks) {
    const bool codes = std::any_of(targets.begin(), targets.end(),
                                   [](const Target& target) { return target.has_codes; });
    if (!codes && !in_blocks) return;
    each_tile([&](const QuantizedGroups::Band& band, int64_t col) {
      TileMemory& tile = TileMemory::of_this_thread();
      for (int64_t r = 0; r < band.rows; ++r) {
        source_.load(band.group, band.row + r, col, tile.values + r * kStripe);
      }
      for (const Target& target : targets) {
        const GroupCodes copy = target.of(groups_, band.group);
        if (in_blocks) make_block_scales(band, col, copy, target.make, tile);
        if (!target.has_codes) continue;
        make_codes(band, col, copy, tile);
        write_codes(band, col, copy, tile);
      }
    });
  }

  /// Blocks of a tile are whole but at the edges of the group.
  void make_block_scales(const QuantizedGroups::Band& band, int64_t col, const GroupCodes& copy,
                         const ScaleMaker& make, TileMemory& tile) {
    const int64_t cols = columns_of_stripe(source_.width(), col);
    const GroupScales& scales = copy.scales;
    for (int64_t r0 = 0; r0 < band.rows; r0 += scales.row_block) {
      const int64_t r1 = std::min(r0 + scales.row_block, band.rows);
      if (scales.col_block == 1) {
        std::fill_n(tile.factors, kStripe, 0.0f);
        for (int64_t r = r0; r < r1; ++r) {
          kernel_.raise_amaxes(tile.values + r * kStripe, tile.factors);
        }
        for (int64_t c = 0; c < cols; ++c) {
          scales.set(band.row + r0, col + c, make(tile.factors[c]));
        }
        continue;
      }
      for (int64_t c0 = 0; c0 < cols; c0 += scales.col_block) {
        float amax = 0;
        for (int64_t r = r0; r < r1; ++r) {
          amax = std::max(amax, kernel_.amax(tile.values + r * kStripe + c0, scales.col_block));
        }
        scales.set(band.row + r0, col + c0, make(amax));
      }
    }
  }

  void make_codes(const QuantizedGroups::Band& band, int64_t col, const GroupCodes& copy,
                  TileMemory& tile) {
    const int64_t cols = columns_of_stripe(source_.width(), col);
    for (int64_t r = 0; r < band.rows; ++r) {
      if (copy.scales.begins_block(r)) {
        copy.scales.read(band.row + r, col, cols, tile.factors);
        std::fill(tile.factors + cols, tile.factors + kStripe, 1.0f);
        for (float& factor : tile.factors) factor = 1 / factor;
      }
      kernel_.to_codes(tile.values + r * kStripe, tile.factors, copy.codes.dtype,
                       tile.codes + r * kStripe);
    }
  }

  void write_codes(const QuantizedGroups::Band& band, int64_t col, const GroupCodes& copy,
                   const TileMemory& tile) {
    const int64_t cols = columns_of_stripe(source_.width(), col);
    const int64_t row_stride = copy.codes.row_stride;
    const int64_t col_stride = copy.codes.col_stride;
    auto* const to = static_cast<uint8_t*>(element_at(copy.codes, band.row, col));
    if (col_stride == 1) {
      for (int64_t r = 0; r < band.rows; ++r) {
        std::memcpy(to + r * row_stride, tile.codes + r * kStripe, static_cast<size_t>(cols));
      }
    } else {
      const bool in_blocks = row_stride == 1;
      for (int64_t c = 0; c < cols; c += 8) {
        for (int64_t r = 0; r < band.rows; r += 8) {
          const uint8_t* const from = tile.codes + r * kStripe + c;
          uint8_t* const block = to + c * col_stride + r * row_stride;
          if (in_blocks && c + 8 <= cols && r + 8 <= band.rows) {
            transpose_block(from, kStripe, block, col_stride);
            continue;
          }
          for (int64_t i = 0; i < std::min<int64_t>(cols - c, 8); ++i) {
            for (int64_t j = 0; j < std::min<int64_t>(band.rows - r, 8); ++j) {
              block[i * col_stride + j * row_stride] = from[j * kStripe + i];
            }
          }
        }
      }
    }
    if (!copy.pads) return;
    for (int64_t r = band.rows; r % kColumnAlignment != 0; ++r) {
      for (int64_t c = 0; c < cols; ++c) to[c * col_stride + r * row_stride] = 0;
    }
  }

  /// Rows behind the last group: zeros of scale 1, and of no amax.
  void clear_tail(const Target& target, ScaleMode mode, int64_t m) {
    const int64_t width = source_.width();
    const GroupCodes tail = target.of(groups_, groups_.count());
    const float scale = target.has_codes ? 1 : 0;
    threads_.each(m - groups_.tail_begin(), width, [&](int64_t row) {
      for (int64_t col = 0; target.has_codes && col < width; ++col) {
        *static_cast<uint8_t*>(element_at(tail.codes, row, col)) = 0;
      }
      if (mode == ScaleMode::kRow) tail.scales.set(row, 0, scale);
      if (mode == ScaleMode::kRow || mode == ScaleMode::kTensor) return;
      for (int64_t col = 0; col < width; col += tail.scales.col_block) {
        tail.scales.set(row, col, scale);
      }
    });
  }

  const QuantizedGroups& groups_;
  const Source& source_;
  const StripeKernel& kernel_;
  RowThreads& threads_;
};

void quantize_into(const std::vector<Target>& targets, const plan::Problem& problem,
                   const QuantizeArgs& args, const StripeKernel& kernel, RowThreads& threads) {
  const QuantizedGroups groups(problem, args.x, args.group_sizes);
  const Source source(args, problem.n, groups, kernel);
  Quantizer(groups, source, kernel, threads)
      .run(targets, targets.front().tensor.scales.mode, problem.m);
}

}  // namespace

void quantize(const plan::Problem& problem, const QuantizeArgs& args, const StripeKernel& kernel,
              RowThreads& threads) {
  std::vector<Target> targets;
  if (args.rows.given()) {
    targets.push_back({args.rows, problem.lhs_scales, ScaleMaker(args, args.rows)});
  }
  if (args.columns.given()) {
    targets.push_back(
        {args.columns, problem.rhs_scales, ScaleMaker(args, args.columns), /*transposed=*/true});
  }
  quantize_into(targets, problem, args, kernel, threads);
}

void amax(const plan::Problem& problem, const AmaxArgs& args, const StripeKernel& kernel,
          RowThreads& threads) {
  const QuantizeArgs source{.x = args.x, .group_sizes = args.group_sizes};
  const ScaledTensor out(args.x, Scales(args.mode, args.out));
  quantize_into({{.tensor = out, .form = problem.lhs_scales, .make = {}, .has_codes = false}},
                problem, source, kernel, threads);
}

void dequantize(const plan::Problem& problem, const DequantizeArgs& args,
                const StripeKernel& kernel, RowThreads& threads) {
  const QuantizedGroups groups(problem, args.x, args.group_sizes);
  const int64_t width = problem.n;
  const int64_t stripes = (width + kStripe - 1) / kStripe;
  const auto codes_of = [&](int64_t group) {
    return args.x.columns ? groups.in_columns(args.x, problem.lhs_scales, group)
                          : groups.in_rows(args.x, problem.lhs_scales, group);
  };
  threads.each(groups.bands() * stripes, kBandRows * kStripe, [&](int64_t unit) {
    const QuantizedGroups::Band band = groups.band(unit / stripes);
    const int64_t col = unit % stripes * kStripe;
    const int64_t cols = columns_of_stripe(width, col);
    const GroupCodes copy = codes_of(band.group);
    const MatrixRef out = groups.plain(args.out, band.group);
    TileMemory& tile = TileMemory::of_this_thread();
    for (int64_t r = 0; r < band.rows; ++r) {
      const auto* from = static_cast<const uint8_t*>(element_at(copy.codes, band.row + r, col));
      for (int64_t c = 0; c < cols; ++c) tile.codes[c] = from[c * copy.codes.col_stride];
      std::fill(tile.codes + cols, tile.codes + kStripe, uint8_t{0});
      if (copy.scales.begins_block(r)) {
        copy.scales.read(band.row + r, col, cols, tile.factors);
      }
      kernel.from_codes(tile.codes, tile.factors, args.x.dtype, part(out, band.row + r, col), cols);
    }
  });
  threads.each(problem.m - groups.tail_begin(), width, [&](int64_t row) {
    for (int64_t col = 0; col < width; ++col) {
      set_value(args.out, groups.tail_begin() + row, col, 0);
    }
  });
}

}  // namespace cadre::cpu
