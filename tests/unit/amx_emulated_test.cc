// The AMX kernels on a machine without AMX: right, and of equal bits however B lies and however
// many rows there are. On a machine that has AMX the contract suite runs them as they are.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/convert.h"
#include "cpu/gemm_driver.h"
#include "cpu/isa.h"
#include "unit/activated_products.h"
#include "unit/indexed_rows.h"
#include "unit/small_blocks.h"

namespace cadre::cpu {
extern const GemmKernel kEmulatedAmxBf16, kEmulatedAmxInt8;
extern const GemmKernel kGemmAmxF32, kGemmAvx512F32;

namespace {

struct Shape {
  int64_t m, n, k;
};

// Around tiles of 16 and 32 (f32: 9 x 48), steps of 32 (64 for int8), stretches and parts of
// panels, with more rows than stay resident, and of whole panels and steps, which are multiplied
// turned over: one panel of rows or several, whole or not, in one block or in several.
constexpr Shape kShapes[] = {
    {1, 32, 64},   {1, 33, 31},    {4, 96, 2048}, {16, 64, 128},  {17, 31, 65},    {32, 100, 257},
    {33, 64, 512}, {48, 65, 300},  {49, 96, 192}, {100, 70, 129}, {65, 160, 1100}, {9, 48, 64},
    {10, 49, 600}, {3, 300, 1030}, {2, 224, 128}, {33, 320, 64},  {40, 96, 1024},  {130, 32, 4096}};

/// B is [k, n], or [n, k] read as its transpose.
class Product {
 public:
  Product(DType dtype, Shape shape, bool transposed)
      : shape_(shape),
        size_(static_cast<int64_t>(size_of(dtype))),
        a_(bytes(shape.m * shape.k)),
        b_(bytes(shape.k * shape.n)) {
    std::mt19937 random(7);
    item_ = {.m = shape.m, .n = shape.n, .k = shape.k};
    item_.a = {a_.data(), dtype, shape.k, 1};
    item_.b = {b_.data(), dtype, transposed ? 1 : shape.n, transposed ? shape.k : 1};
    // By row and column, so that both layouts hold the same values.
    fill(item_.a, shape.m, shape.k, random);
    fill(item_.b, shape.k, shape.n, random);
  }

  /// Rows [begin, end) of the product, each element four bytes (f32 or int32).
  std::vector<uint32_t> rows(const GemmKernel& kernel, int64_t begin, int64_t end, int threads,
                             double alpha = 1) {
    std::vector<uint32_t> out(static_cast<size_t>((end - begin) * shape_.n), 0x7fc00000u);
    GemmItem item = item_;
    item.m = end - begin;
    item.alpha = alpha;
    item.a.data = element_at(item_.a, begin, 0);
    item.d = {out.data(), kernel.acc_dtype, shape_.n, 1};
    const GemmPlan plan{&kernel, make_blocking(kernel, cache_sizes()), threads};
    EXPECT_TRUE(multiply_items({item}, plan).ok());
    return out;
  }

  double exact(int64_t row, int64_t column, double* magnitude) const {
    double sum = 0;
    *magnitude = 0;
    for (int64_t p = 0; p < shape_.k; ++p) {
      const double term = value(item_.a, row, p) * value(item_.b, p, column);
      sum += term;
      *magnitude += std::abs(term);
    }
    return sum;
  }

 private:
  std::vector<char> bytes(int64_t elements) const {
    return std::vector<char>(static_cast<size_t>(elements * size_));
  }
  static double value(const MatrixRef& matrix, int64_t i, int64_t j) {
    return load_as_double(element_at(matrix, i, j), matrix.dtype, 0);
  }
  static void fill(const MatrixRef& matrix, int64_t rows, int64_t columns, std::mt19937& random) {
    std::uniform_real_distribution<double> unit(-1.0, 1.0);
    std::uniform_int_distribution<int> byte(-128, 127);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        void* p = element_at(matrix, i, j);
        if (matrix.dtype == DType::kI8) {
          *static_cast<int8_t*>(p) = static_cast<int8_t>(byte(random));
        } else {
          store_rounded(p, matrix.dtype, 0, unit(random));
        }
      }
    }
  }

  Shape shape_;
  int64_t size_;
  std::vector<char> a_, b_;
  GemmItem item_;
};

class EmulatedAmx : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    Isa isa{};
    if (!resolve_isa("avx512", &isa).ok()) GTEST_SKIP() << "no AVX-512, which packing needs";
  }
  const GemmKernel& kernel() const {
    if (GetParam() == DType::kF32) return kGemmAmxF32;  // no tiles: nothing to emulate
    return GetParam() == DType::kI8 ? kEmulatedAmxInt8 : kEmulatedAmxBf16;
  }
};

TEST_P(EmulatedAmx, IsRight) {
  for (const Shape& shape : kShapes) {
    for (const bool transposed : {false, true}) {
      Product product(GetParam(), shape, transposed);
      const std::vector<uint32_t> out = product.rows(kernel(), 0, shape.m, 1);
      for (int64_t i = 0; i < shape.m; ++i) {
        for (int64_t j = 0; j < shape.n; ++j) {
          double magnitude = 0;
          const double exact = product.exact(i, j, &magnitude);
          const auto bits = out[static_cast<size_t>(i * shape.n + j)];
          float sum = 0;
          std::memcpy(&sum, &bits, sizeof(sum));
          const double got = GetParam() == DType::kI8 ? static_cast<int32_t>(bits) : double{sum};
          const double allowed =
              GetParam() == DType::kI8 ? 0 : static_cast<double>(shape.k + 8) * 0x1p-24 * magnitude;
          ASSERT_LE(std::abs(got - exact), allowed)
              << "[" << i << ", " << j << "] of " << shape.m << " x " << shape.n << " x " << shape.k
              << (transposed ? ", [n, k]" : ", [k, n]");
        }
      }
    }
  }
}

TEST_P(EmulatedAmx, GivesTheSameBitsForAnyRowsLayoutAndThreads) {
  for (const Shape& shape : kShapes) {
    const std::vector<uint32_t> all =
        Product(GetParam(), shape, false).rows(kernel(), 0, shape.m, 3);
    for (const bool transposed : {false, true}) {
      Product product(GetParam(), shape, transposed);
      EXPECT_EQ(product.rows(kernel(), 0, shape.m, 1), all) << shape.m << ", " << transposed;
      for (const int64_t row : {int64_t{0}, shape.m / 2, shape.m - 1}) {
        const auto begin = all.begin() + row * shape.n;
        EXPECT_EQ(product.rows(kernel(), row, row + 1, 1),
                  std::vector<uint32_t>(begin, begin + shape.n))
            << "row " << row << " of " << shape.m << ", " << transposed;
      }
    }
  }
}

/// Sums that pass through the epilogue instead of being stored as they are.
TEST_P(EmulatedAmx, ScalesBothLayouts) {
  const auto number = [&](uint32_t bits) {
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return GetParam() == DType::kI8 ? static_cast<int32_t>(bits) : double{value};
  };
  for (const Shape& shape : kShapes) {
    for (const bool transposed : {false, true}) {
      Product product(GetParam(), shape, transposed);
      const std::vector<uint32_t> plain = product.rows(kernel(), 0, shape.m, 2);
      const std::vector<uint32_t> twice = product.rows(kernel(), 0, shape.m, 2, 2.0);
      for (size_t i = 0; i < plain.size(); ++i) {
        ASSERT_EQ(number(twice[i]), 2 * number(plain[i]))
            << i << " of " << shape.m << " x " << shape.n << " x " << shape.k << ", " << transposed;
      }
    }
  }
}

TEST_P(EmulatedAmx, GivesTheSameBitsInBlocksOfAnySize) {
  SmallBlocks(kernel(), GetParam(), GetParam()).check();
}

TEST_P(EmulatedAmx, RowsByIndexGiveTheBitsOfRowsCopiedFirst) {
  IndexedRows(kernel(), GetParam(), GetParam()).check();
}

TEST_P(EmulatedAmx, ActivationsGiveTheBitsOfActivatingThePlainResults) {
  const DType out = GetParam() == DType::kI8 ? DType::kF32 : GetParam();
  ActivatedProducts(kernel(), GetParam(), GetParam(), out).check();
}

INSTANTIATE_TEST_SUITE_P(Types, EmulatedAmx, testing::Values(DType::kBF16, DType::kI8, DType::kF32),
                         [](const auto& param_info) {
                           return std::string(name_of(param_info.param));
                         });

/// Machines with and without AMX agree on f32 and on what is widened to it, and so do weights of
/// either layout.
TEST(AmxF32, GivesTheBitsOfAvx512) {
  Isa isa{};
  if (!resolve_isa("avx512", &isa).ok()) GTEST_SKIP() << "no AVX-512";
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape& shape : kShapes) {
      const std::vector<uint32_t> expected =
          Product(dtype, shape, false).rows(kGemmAvx512F32, 0, shape.m, 1);
      for (const bool transposed : {false, true}) {
        Product product(dtype, shape, transposed);
        EXPECT_EQ(product.rows(kGemmAmxF32, 0, shape.m, 3), expected)
            << name_of(dtype) << " " << shape.m << " x " << shape.n << " x " << shape.k << ", "
            << transposed;
      }
    }
  }
}

}  // namespace
}  // namespace cadre::cpu
