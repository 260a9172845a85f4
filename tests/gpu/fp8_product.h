// A gmm of FP8 operands on a GPU: its data, its scales, and what each element should be. Data are
// small integers, whose sums the tensor cores keep exactly whatever few bits they have, so that
// what is left are the roundings of the scales in f32: a derived bound.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "core/text.h"
#include "tests/gpu/gpu_fixture.h"
#include "verify/tolerance.h"

namespace cadre::tests {

inline constexpr int64_t kScaleBlock = 128;

inline int64_t blocks_of(int64_t size) { return (size + kScaleBlock - 1) / kScaleBlock; }

struct Fp8Case {
  std::vector<int64_t> sizes;  ///< of all groups; weights are those of the local ones
  int64_t k = 0;
  int64_t n = 0;
  int64_t tail = 0;
  DType lhs = DType::kE4M3;
  DType rhs = DType::kE4M3;
  DType out = DType::kBF16;
  ScaleMode lhs_mode = ScaleMode::kBlock128;
  ScaleMode rhs_mode = ScaleMode::kBlock128;
  DType scales = DType::kF32;
  bool rows_of_scales = true;  ///< block_128: lhs scales [m, blocks] by rows, else m contiguous
  bool one_scale = false;      ///< tensor: one for all groups
  bool fast = false;
  bool options = false;       ///< alpha, bias, bias_scale, row_scale
  bool alpha = false;         ///< alone
  bool accumulate = false;    ///< onto what out holds
  int64_t local_groups = -1;  ///< -1: all
  int64_t group_offset = 0;
  bool weights_in_lists = false;  ///< on the device, and so are those of their scales
  const char* kernel = nullptr;
  int32_t sm_count = 0;
  int64_t average_rows = 0;

  int64_t m() const { return std::accumulate(sizes.begin(), sizes.end(), tail); }
  int64_t groups() const {
    return local_groups < 0 ? static_cast<int64_t>(sizes.size()) : local_groups;
  }
  int64_t rows_of(int64_t group) const { return sizes[static_cast<size_t>(group_offset + group)]; }
  /// The rows of the local groups are [first_row(), end_row()).
  int64_t first_row() const { return sum_of_first(group_offset); }
  int64_t end_row() const { return sum_of_first(group_offset + groups()); }
  std::string name() const {
    std::string list;
    for (size_t i = 0; i < sizes.size() && i < 8; ++i) list += text(" ", sizes[i]);
    return text(name_of(lhs), " x ", name_of(rhs), " -> ", name_of(out), ", ", name_of(lhs_mode),
                " x ", name_of(rhs_mode), " in ", name_of(scales), ", k ", k, ", n ", n, ", sizes",
                list, local_groups < 0 ? "" : text(", ", local_groups, " from ", group_offset),
                fast ? ", fast" : "", options ? ", options" : "", alpha ? ", alpha" : "",
                accumulate ? ", accumulate" : "", weights_in_lists ? ", lists" : "", ", kernel ",
                kernel == nullptr ? "any" : kernel, ", average rows ", average_rows);
  }

 private:
  int64_t sum_of_first(int64_t count) const {
    return std::accumulate(sizes.begin(), sizes.begin() + count, int64_t{0});
  }
};

/// The operands of a case on the device and what the host knows of them.
class Fp8Operands {
 public:
  explicit Fp8Operands(const Fp8Case& c, uint64_t seed = 1)
      : c_(c),
        stride_((c.k + 15) / 16 * 16),
        lhs_(c.lhs, {c.m() + 1, stride_}),
        rhs_(c.rhs, {c.groups() * c.n, stride_}),
        sizes_(DType::kI32, {static_cast<int64_t>(c.sizes.size())}),
        lhs_scales_(scales_dtype(c), {lhs_scale_count()}),
        rhs_scales_(scales_dtype(c), {rhs_scale_count()}),
        out_stride_((c.n + 7) / 8 * 8),
        out_(c.out, {c.m(), out_stride_}),
        alpha_(DType::kF32, {c.groups()}),
        bias_(DType::kF32, {c.groups(), c.n}),
        row_scale_(DType::kF32, {c.m()}),
        bias_scale_(DType::kF32, {c.m()}),
        rhs_list_(DType::kI64, {c.groups()}),
        rhs_scales_list_(DType::kI64, {c.groups()}) {
    verify::Random random(seed);
    a_.resize(static_cast<size_t>((c.m() + 1) * stride_));
    b_.resize(static_cast<size_t>(c.groups() * c.n * stride_));
    fill(random, lhs_, a_, c.first_row(), c.end_row());
    fill(random, rhs_, b_, 0, c.groups() * c.n);
    fill_scales(random, lhs_scales_);
    fill_scales(random, rhs_scales_);
    sizes_.set(c.sizes);
    alpha_.fill_random(seed + 1);
    bias_.fill_random(seed + 2);
    row_scale_.fill_random(seed + 3);
    bias_scale_.fill_random(seed + 4);
    if (c.accumulate) out_.fill_random(seed + 5);
    set_list(rhs_list_, rhs_, c.n * stride_);
    set_list(rhs_scales_list_, rhs_scales_, rhs_scale_count() / std::max<int64_t>(c.groups(), 1));
  }

  GmmArgs args() const {
    GmmArgs args;
    args.lhs = ScaledTensor(lhs_view(), lhs_scales());
    args.rhs = ScaledGroups(weights(), rhs_scales());
    args.transpose_rhs = true;
    args.group_sizes = sizes_.sizes();
    args.group_offset = c_.group_offset;
    args.out = TensorView::strided(out_.data(), c_.out, {c_.m(), c_.n}, {out_stride_, 1}, kGpu);
    args.accumulate = c_.accumulate;
    if (c_.options) {
      args.alpha = alpha_.view();
      args.bias = GroupedTensor::vectors(bias_.view());
      args.bias_scale = bias_scale_.view();
      args.row_scale = row_scale_.view();
    }
    if (c_.alpha) args.alpha = alpha_.view();
    args.options.config = c_.kernel;
    args.options.fast_accumulation = c_.fast;
    args.options.average_rows = c_.average_rows;
    return args;
  }

  /// What element [row, col] should be; the row is of all rows, and in this local group.
  verify::Expected expected(int64_t group, int64_t row, int64_t col) const {
    const int8_t* a = a_.data() + row * stride_;
    const int8_t* b = b_.data() + (group * c_.n + col) * stride_;
    double sum = 0;
    double size = 0;
    for (int64_t first = 0; first < c_.k; first += kScaleBlock) {
      int32_t exact = 0;
      int32_t absolute = 0;
      for (int64_t i = first; i < std::min(first + kScaleBlock, c_.k); ++i) {
        exact += a[i] * b[i];
        absolute += std::abs(a[i] * b[i]);
      }
      const double scale =
          lhs_scale(row, first / kScaleBlock) * rhs_scale(group, col, first / kScaleBlock);
      sum += scale * exact;
      size += scale * absolute;
    }
    if (c_.options) {
      const double row_scale = row_scale_.before(row);
      const double alpha = alpha_.before(group);
      const double bias = bias_scale_.before(row) * bias_.before(group * c_.n + col);
      sum = row_scale * (alpha * sum + bias);
      size = std::fabs(row_scale) * (std::fabs(alpha) * size + std::fabs(bias));
    }
    if (c_.alpha) {
      sum *= alpha_.before(group);
      size *= std::fabs(alpha_.before(group));
    }
    if (c_.accumulate) {
      const double c = out_.before(row * out_stride_ + col);
      sum += c;
      size += std::fabs(c);
    }
    // The portable kernel, which may take lists, rounds every term.
    const int64_t operations = (c_.weights_in_lists ? c_.k : blocks_of(c_.k)) + 10;
    return {.value = sum, .bound = verify::rounding_bound(DType::kF32, operations, size)};
  }

  GpuArray& lhs() { return lhs_; }
  GpuArray& rhs() { return rhs_; }
  GpuArray& out() { return out_; }
  int64_t stride() const { return stride_; }
  double got(int64_t row, int64_t col) const { return out_.after(row * out_stride_ + col); }
  double had(int64_t row, int64_t col) const { return out_.before(row * out_stride_ + col); }
  /// Whether what follows each row's last column is as it was.
  bool padding_intact() const {
    for (int64_t row = 0; row < c_.m(); ++row) {
      for (int64_t col = c_.n; col < out_stride_; ++col) {
        const bool same =
            c_.accumulate ? got(row, col) == had(row, col) : std::isnan(got(row, col));
        if (!same) return false;
      }
    }
    return true;
  }

 private:
  static DType scales_dtype(const Fp8Case& c) {
    return c.lhs_mode == ScaleMode::kBlock128 ? c.scales : DType::kF32;
  }
  int64_t lhs_scale_count() const {
    if (c_.lhs_mode == ScaleMode::kTensor) return 1;
    return c_.m() * (c_.lhs_mode == ScaleMode::kBlock128 ? blocks_of(c_.k) : 1);
  }
  int64_t rhs_scale_count() const {
    if (c_.rhs_mode == ScaleMode::kTensor) return c_.one_scale ? 1 : c_.groups();
    if (c_.rhs_mode == ScaleMode::kRow) return c_.groups() * c_.n;
    return c_.groups() * blocks_of(c_.n) * blocks_of(c_.k);
  }

  /// Rows [begin, end). Past k and in other rows lies NaN, which no result may show.
  void fill(verify::Random& random, GpuArray& array, std::vector<int8_t>& numbers, int64_t begin,
            int64_t end) {
    for (int64_t row = 0; row < array.count() / stride_; ++row) {
      for (int64_t i = 0; i < stride_; ++i) {
        const int64_t at = row * stride_ + i;
        const bool inside = row >= begin && row < end && i < c_.k;
        numbers[static_cast<size_t>(at)] = static_cast<int8_t>(inside ? random.between(-4, 4) : 0);
        array.store(at, inside ? numbers[static_cast<size_t>(at)] : NAN);
      }
    }
    array.upload();
  }

  /// The addresses of `array`'s groups, each of so many elements.
  void set_list(GpuArray& list, const GpuArray& array, int64_t elements) const {
    std::vector<int64_t> addresses;
    const auto bytes = elements * static_cast<int64_t>(size_of(array.dtype()));
    for (int64_t i = 0; i < c_.groups(); ++i) {
      addresses.push_back(reinterpret_cast<intptr_t>(array.data()) + i * bytes);
    }
    list.set(addresses);
  }
  static void* const* pointers(const GpuArray& list) {
    return static_cast<void* const*>(list.data());
  }

  GroupedTensor weights() const {
    if (c_.weights_in_lists) {
      const TensorView like =
          TensorView::strided(nullptr, c_.rhs, {c_.n, c_.k}, {stride_, 1}, kGpu);
      return GroupedTensor::list(pointers(rhs_list_), c_.groups(), like, kGpu);
    }
    return TensorView::strided(rhs_.data(), c_.rhs, {c_.groups(), c_.n, c_.k},
                               {c_.n * stride_, stride_, 1}, kGpu);
  }

  void fill_scales(verify::Random& random, GpuArray& array) const {
    for (int64_t i = 0; i < array.count(); ++i) {
      array.store(i, array.dtype() == DType::kE8M0
                         ? std::ldexp(1.0, static_cast<int>(random.between(-3, 3)))
                         : random.uniform(0.5, 2));
    }
    array.upload();
  }

  TensorView lhs_view() const {
    return TensorView::strided(lhs_.data(), c_.lhs, {c_.m(), c_.k}, {stride_, 1}, kGpu);
  }
  Scales lhs_scales() const {
    const int64_t m = c_.m();
    void* data = lhs_scales_.data();
    const DType dtype = lhs_scales_.dtype();
    if (c_.lhs_mode != ScaleMode::kBlock128) {
      const int64_t count = lhs_scale_count();
      return {c_.lhs_mode, TensorView::contiguous(data, dtype, {count}, kGpu)};
    }
    const int64_t blocks = blocks_of(c_.k);
    return {c_.lhs_mode, c_.rows_of_scales
                             ? TensorView::strided(data, dtype, {m, blocks}, {blocks, 1}, kGpu)
                             : TensorView::strided(data, dtype, {m, blocks}, {1, m}, kGpu)};
  }
  Scales rhs_scales() const {
    const Scales stacked = stacked_rhs_scales();
    if (!c_.weights_in_lists) return stacked;
    TensorView like = stacked.values;
    if (c_.rhs_mode == ScaleMode::kTensor) {
      like.shape[0] = 1;
    } else {
      --like.rank;
      for (size_t i = 0; i < static_cast<size_t>(like.rank); ++i) {
        like.shape[i] = like.shape[i + 1];
        like.strides[i] = like.strides[i + 1];
      }
    }
    return Scales::list(c_.rhs_mode, pointers(rhs_scales_list_), like, kGpu);
  }
  Scales stacked_rhs_scales() const {
    void* data = rhs_scales_.data();
    const DType dtype = rhs_scales_.dtype();
    switch (c_.rhs_mode) {
      case ScaleMode::kTensor:
        return {c_.rhs_mode, TensorView::contiguous(data, dtype, {rhs_scale_count()}, kGpu)};
      case ScaleMode::kRow:
        return {c_.rhs_mode, TensorView::contiguous(data, dtype, {c_.groups(), c_.n}, kGpu)};
      default:
        return {c_.rhs_mode,
                TensorView::contiguous(data, dtype, {c_.groups(), blocks_of(c_.n), blocks_of(c_.k)},
                                       kGpu)};
    }
  }
  double lhs_scale(int64_t row, int64_t block) const {
    if (c_.lhs_mode == ScaleMode::kTensor) return lhs_scales_.before(0);
    if (c_.lhs_mode == ScaleMode::kRow) return lhs_scales_.before(row);
    return lhs_scales_.before(c_.rows_of_scales ? row * blocks_of(c_.k) + block
                                                : block * c_.m() + row);
  }
  double rhs_scale(int64_t group, int64_t col, int64_t block) const {
    if (c_.rhs_mode == ScaleMode::kTensor) return rhs_scales_.before(c_.one_scale ? 0 : group);
    if (c_.rhs_mode == ScaleMode::kRow) return rhs_scales_.before(group * c_.n + col);
    return rhs_scales_.before((group * blocks_of(c_.n) + col / kScaleBlock) * blocks_of(c_.k) +
                              block);
  }

  Fp8Case c_;
  int64_t stride_;  ///< of a row of lhs and rhs: whole 16 bytes
  GpuArray lhs_, rhs_, sizes_, lhs_scales_, rhs_scales_;
  int64_t out_stride_;
  GpuArray out_, alpha_, bias_, row_scale_, bias_scale_;
  GpuArray rhs_list_, rhs_scales_list_;
  std::vector<int8_t> a_, b_;
};

/// Where wrong elements lie, so that one run tells the most.
class WrongElements {
 public:
  void add(int64_t group, int64_t group_row, int64_t col, double got,
           const verify::Expected& expected, double severity) {
    ++count_;
    ++places_[text("group ", group)];
    ++places_[text("row block ", group_row / 64)];
    ++places_[text("row % 16 = ", group_row % 16)];
    ++places_[text("feature tile ", col / 128)];
    ++places_[text("feature block ", col / 64 % 2)];
    if (std::isnan(got)) ++places_["nan"];
    if (got == 0) ++places_["zero"];
    if (!(severity <= worst_)) {
      worst_ = std::isnan(severity) ? HUGE_VAL : severity;
      worst_text_ = text("group ", group, " row ", group_row, " col ", col, " = ", got,
                         ", expected ", expected.value, " +- ", expected.bound);
    }
  }
  bool any() const { return count_ > 0; }
  std::string message(int64_t of) const {
    std::string list = text(count_, " wrong of ", of, "; worst: ", worst_text_, ";");
    for (const auto& [place, count] : places_) list += text(" [", place, ": ", count, "]");
    return list;
  }

 private:
  int64_t count_ = 0;
  double worst_ = -1;
  std::string worst_text_;
  std::map<std::string, int64_t> places_;
};

}  // namespace cadre::tests
