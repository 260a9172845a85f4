// Products with an activation: the bits of the plain product's results, activated one by one in the
// precision of the epilogue and rounded once, whichever way through a unit they take.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/activation_math.h"
#include "core/convert.h"
#include "cpu/gemm_driver.h"
#include "tests/support/sanitized.h"

namespace cadre::cpu {

inline constexpr ActivationKind kActivations[] = {
    ActivationKind::kSilu,     ActivationKind::kGeluTanh,     ActivationKind::kGeluErf,
    ActivationKind::kRelu2,    ActivationKind::kSwiglu,       ActivationKind::kGegluTanh,
    ActivationKind::kGegluErf, ActivationKind::kClampedSwiglu};

class ActivatedProducts {
 public:
  ActivatedProducts(const GemmKernel& kernel, DType a, DType b, DType out)
      : kernel_(kernel), a_dtype_(a), b_dtype_(b), out_dtype_(out) {}

  void check() {
    int turn = 0;
    for (const Shape& shape : kShapes) {
      // The large ones would take minutes under a sanitizer.
      if (tests::kSanitized && shape.m * shape.k > 20000) continue;
      for (const ActivationKind kind : kActivations) {
        for (const GateLayout layout : {GateLayout::kConcatenated, GateLayout::kInterleaved}) {
          Activation activation{.kind = kind, .layout = layout};
          if (!activation.gated() && layout == GateLayout::kInterleaved) continue;
          // Small products: a limit that clamps some of them.
          activation.limit = 0.4;
          for (const bool transposed : {false, true}) {
            check_one(shape, activation, transposed, ++turn);
          }
        }
      }
    }
  }

 private:
  struct Shape {
    int64_t m, result_cols, k;
  };
  // One row, resident, several row tiles, many rows in one block and in several; whole panels and
  // steps (turned over on AMX) and parts of them.
  static constexpr Shape kShapes[] = {{1, 96, 128},  {1, 33, 70},    {5, 70, 61},
                                      {20, 32, 256}, {60, 50, 300},  {130, 160, 1100},
                                      {70, 64, 64},  {200, 129, 130}};

  void fill(std::vector<char>& bytes, DType dtype, int64_t count) {
    bytes.resize(static_cast<size_t>(count) * size_of(dtype));
    std::uniform_real_distribution<double> unit(-0.5, 0.5);
    for (int64_t i = 0; i < count; ++i) {
      if (dtype == DType::kI8) {
        bytes[static_cast<size_t>(i)] = static_cast<char>(random_() % 7) - 3;
      } else {
        store_rounded(bytes.data(), dtype, i, unit(random_));
      }
    }
  }

  void multiply(const GemmItem& item, int threads, const PackedMatrix* packed = nullptr) const {
    const GemmPlan plan{&kernel_, make_blocking(kernel_, cache_sizes()), threads};
    ASSERT_TRUE(multiply_items({item}, plan, {packed}).ok());
  }

  /// All of an item's B, packed ahead.
  std::vector<char> pack(const GemmItem& item, const PackedLayout& layout) const {
    std::vector<char> data(static_cast<size_t>(layout.size_bytes()));
    for (int64_t block = 0; block < layout.blocks(); ++block)
      for (int64_t panel = 0; panel < layout.panels(); ++panel)
        pack_panel(layout, item.b, {}, block, panel, data.data());
    return data;
  }

  template <class T>
  double activated(const Activation& activation, double gate, double up) const {
    return with_activation_kind(activation.kind, [&](auto kind) {
      return static_cast<double>(
          activate_with<decltype(kind)::value, T>(static_cast<T>(gate), static_cast<T>(up),
                                                  ClampParameters<T>(activation))
              .value);
    });
  }

  void check_one(const Shape& shape, const Activation& activation, bool transposed, int turn) {
    const int64_t n = shape.result_cols * activation.columns();
    std::vector<char> a, b, bias, row_scale;
    fill(a, a_dtype_, shape.m * shape.k);
    fill(b, b_dtype_, shape.k * n);
    fill(bias, DType::kF32, n);
    fill(row_scale, DType::kF32, shape.m);
    GemmItem item{.m = shape.m, .n = n, .k = shape.k};
    item.a = {a.data(), a_dtype_, shape.k, 1};
    item.b = {b.data(), b_dtype_, transposed ? 1 : n, transposed ? shape.k : 1};
    if (turn % 3 != 0) item.bias = {bias.data(), DType::kF32, 1};
    if (turn % 2 != 0) item.row_scale = {row_scale.data(), DType::kF32, 1};
    item.alpha = turn % 5 == 0 ? 0.75 : 1.0;

    // The plain product, in the precision of the epilogue.
    const bool f32 = kernel_.acc_dtype == DType::kF32;
    const DType exact = f32 ? DType::kF32 : DType::kF64;
    std::vector<char> sums(static_cast<size_t>(shape.m * n) * size_of(exact));
    item.d = {sums.data(), exact, n, 1};
    multiply(item, 1);

    const int64_t gap = 3;
    const int64_t stride = shape.result_cols + gap;
    std::vector<char> out(static_cast<size_t>(shape.m * stride) * size_of(out_dtype_), '\x7e');
    std::vector<char> expected = out;
    std::vector<char> pre(static_cast<size_t>(shape.m * n) * size_of(out_dtype_), '\x7e');
    std::vector<char> expected_pre = pre;
    const bool interleaved = activation.layout == GateLayout::kInterleaved && activation.gated();
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        store_rounded(expected_pre.data(), out_dtype_, i * n + j,
                      load_as_double(sums.data(), exact, i * n + j));
      }
      for (int64_t j = 0; j < shape.result_cols; ++j) {
        const int64_t gate = interleaved ? 2 * j : j;
        const int64_t up = interleaved ? 2 * j + 1 : j + shape.result_cols;
        const auto input = [&](int64_t col) {
          return load_as_double(expected_pre.data(), out_dtype_, i * n + col);
        };
        const double x = input(gate);
        const double y = activation.gated() ? input(up) : 0.0;
        store_rounded(
            expected.data(), out_dtype_, i * stride + j,
            f32 ? activated<float>(activation, x, y) : activated<double>(activation, x, y));
      }
    }
    item.d = {out.data(), out_dtype_, stride, 1};
    item.step.activation = activation;
    const bool writes_pre = turn % 4 < 2;
    if (writes_pre) item.step.pre = {pre.data(), out_dtype_, n, 1};
    const PackedLayout packed_layout =
        make_packed_layout(kernel_, make_blocking(kernel_, cache_sizes()), shape.k, n);
    const bool packs_ahead = turn % 7 < 3;
    const std::vector<char> data = packs_ahead ? pack(item, packed_layout) : std::vector<char>();
    const PackedMatrix packed{packed_layout, data.data()};
    multiply(item, 1 + turn % 3, packs_ahead ? &packed : nullptr);
    const std::string at =
        std::string(kernel_.name) + " " + std::to_string(shape.m) + " x " +
        std::to_string(shape.result_cols) + " x " + std::to_string(shape.k) + ", kind " +
        std::to_string(static_cast<int>(activation.kind)) + (interleaved ? ", interleaved" : "") +
        (transposed ? ", [n, k]" : ", [k, n]") + (packs_ahead ? ", packed ahead" : "");
    expect_same(out, expected, at);
    if (writes_pre) expect_same(pre, expected_pre, "pre-activation of " + at);
  }

  void expect_same(const std::vector<char>& got, const std::vector<char>& expected,
                   const std::string& at) const {
    if (got == expected) return;
    const auto count = static_cast<int64_t>(got.size() / size_of(out_dtype_));
    for (int64_t i = 0; i < count; ++i) {
      const double x = load_as_double(got.data(), out_dtype_, i);
      const double y = load_as_double(expected.data(), out_dtype_, i);
      if (std::memcmp(&x, &y, sizeof(x)) == 0) continue;
      ADD_FAILURE() << at << ": element " << i << " is " << x << ", expected " << y;
      return;
    }
  }

  const GemmKernel& kernel_;
  DType a_dtype_, b_dtype_, out_dtype_;
  std::mt19937 random_{23};
};

}  // namespace cadre::cpu
