// Products in blocks of a few panels and k values, so that small ones have many of them: right for
// any rest of columns and k, gap between rows and address of B, with no byte beyond B read.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/convert.h"
#include "cpu/gemm_driver.h"
#include "unit/guarded_memory.h"

namespace cadre::cpu {

class SmallBlocks {
 public:
  SmallBlocks(const GemmKernel& kernel, DType a, DType b)
      : kernel_(kernel), a_dtype_(a), b_dtype_(b) {}

  /// Whatever the blocks, the bits of a B that is contiguous in neither direction, and so packed
  /// element by element, in blocks as large as they come.
  void check() {
    for (const Shape& shape : kShapes) {
      std::vector<char> a = random_elements(a_dtype_, shape.m * shape.k, 1);
      std::vector<char> apart = random_elements(b_dtype_, 2 * shape.k * shape.n, 2);
      const MatrixRef b_apart{apart.data(), b_dtype_, 2 * shape.n, 2};
      const Blocking large = make_blocking(kernel_, cache_sizes());
      const std::vector<char> expected = multiply(shape, a, b_apart, large, 1, 1.0);
      const std::vector<char> scaled = multiply(shape, a, b_apart, large, 1, 3.0);
      int threads = 1;
      for (const Place& place : kPlaces) {
        const int64_t stride = (place.transposed ? shape.k : shape.n) + place.gap;
        const int64_t lines = place.transposed ? shape.n : shape.k;
        const auto size = static_cast<int64_t>(size_of(b_dtype_));
        const GuardedMemory memory((lines * stride - place.gap) * size, place.at_end,
                                   place.shift_bytes);
        ASSERT_NE(memory.data(), nullptr);
        const MatrixRef b{memory.data(), b_dtype_, place.transposed ? 1 : stride,
                          place.transposed ? stride : 1};
        for (int64_t p = 0; p < shape.k; ++p)
          for (int64_t j = 0; j < shape.n; ++j)
            std::memcpy(element_at(b, p, j), element_at(b_apart, p, j), static_cast<size_t>(size));
        // The last block of k of 320 in blocks of 128 is shorter than the first one that follows.
        for (const int64_t panels : {2, 5}) {
          const Blocking small = blocks_of(panels, panels == 2 ? 64 : 128);
          EXPECT_EQ(multiply(shape, a, b, small, threads, 1.0), expected)
              << kernel_.name << ", " << name_of(b_dtype_) << ", " << shape.m << " x " << shape.n
              << " x " << shape.k << (place.transposed ? ", [n, k]" : ", [k, n]") << ", gap "
              << place.gap << ", shift " << place.shift_bytes << ", " << panels << " panels, "
              << threads << " threads";
          EXPECT_EQ(multiply(shape, a, b, small, 1, 3.0), scaled) << "with alpha";
          threads = threads % 3 + 1;
        }
      }
    }
  }

 private:
  struct Shape {
    int64_t m, n, k;
  };
  // More rows than stay resident; columns: one panel, pairs of them, one left over, parts of one;
  // k: whole steps and parts of one, in one block and in several.
  static constexpr Shape kShapes[] = {{49, 32, 64},  {64, 192, 256}, {65, 480, 320},
                                      {64, 224, 67}, {70, 250, 192}, {200, 170, 130}};
  struct Place {
    bool transposed;
    int64_t gap;  // elements between two rows
    bool at_end;  // next to the page behind it
    int64_t shift_bytes;
  };
  static constexpr Place kPlaces[] = {{false, 0, true, 0},
                                      {false, 5, true, 1},
                                      {false, 32, false, 3},
                                      {true, 0, true, 0},
                                      {true, 3, false, 1}};

  /// Of k values that every kernel's granules and steps divide.
  Blocking blocks_of(int64_t panels, int64_t k) const {
    Blocking blocking = make_blocking(kernel_, cache_sizes());
    blocking.k_block = blocking.kept_k_block = k;
    blocking.b_bytes_max = blocking.kept_b_bytes_max =
        panels * kernel_.nr * k / kernel_.granule_k * kernel_.granule_bytes;
    return blocking;
  }

  static std::vector<char> random_elements(DType dtype, int64_t count, uint32_t seed) {
    std::vector<char> data(static_cast<size_t>(count) * size_of(dtype));
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> unit(-1.0, 1.0);
    for (int64_t i = 0; i < count; ++i) {
      if (dtype == DType::kI8) {
        data[static_cast<size_t>(i)] = static_cast<char>(random());
      } else {
        store_rounded(data.data(), dtype, i, unit(random));
      }
    }
    return data;
  }

  std::vector<char> multiply(const Shape& shape, std::vector<char>& a, const MatrixRef& b,
                             const Blocking& blocking, int threads, double alpha) const {
    std::vector<char> out(static_cast<size_t>(shape.m * shape.n) * size_of(kernel_.acc_dtype),
                          '\xff');
    const GemmItem item{.m = shape.m,
                        .n = shape.n,
                        .k = shape.k,
                        .a = {a.data(), a_dtype_, shape.k, 1},
                        .b = b,
                        .d = {out.data(), kernel_.acc_dtype, shape.n, 1},
                        .alpha = alpha};
    EXPECT_TRUE(multiply_items({item}, {&kernel_, blocking, threads}).ok());
    return out;
  }

  const GemmKernel& kernel_;
  DType a_dtype_, b_dtype_;
};

}  // namespace cadre::cpu
