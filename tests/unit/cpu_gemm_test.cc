// The blocked CPU driver, on every instruction set this machine has: right against plain loops for
// all types, layouts and epilogues, and bit-equal for any number of rows and threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/convert.h"
#include "core/text.h"
#include "cpu/gemm_driver.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"

namespace cadre::cpu {
namespace {

enum class Layout { kRowMajor, kColumnMajor, kGaps };

/// A matrix of its own memory, in any layout, with a guard value in every byte that is not an
/// element.
struct Matrix {
  std::vector<char> bytes;
  MatrixRef ref;
  int64_t rows, cols;

  Matrix(DType dtype, int64_t m, int64_t n, Layout layout) : rows(m), cols(n) {
    ref.dtype = dtype;
    switch (layout) {
      case Layout::kRowMajor:
        ref.row_stride = n + 3;
        ref.col_stride = 1;
        break;
      case Layout::kColumnMajor:
        ref.row_stride = 1;
        ref.col_stride = m + 5;
        break;
      case Layout::kGaps:
        ref.row_stride = 2 * n + 3;
        ref.col_stride = 2;
        break;
    }
    const int64_t elements =
        m > 0 && n > 0 ? (m - 1) * ref.row_stride + (n - 1) * ref.col_stride + 1 : 0;
    bytes.assign(static_cast<size_t>(elements) * size_of(dtype), '\x7e');
    ref.data = bytes.data();
  }

  double at(int64_t i, int64_t j) const {
    return load_as_double(element_at(ref, i, j), ref.dtype, 0);
  }

  void set(int64_t i, int64_t j, double value) {
    void* p = element_at(ref, i, j);
    if (ref.dtype == DType::kI8) {
      const auto x = static_cast<int8_t>(value);
      std::memcpy(p, &x, sizeof(x));
    } else if (ref.dtype == DType::kI32) {
      const auto x = static_cast<int32_t>(value);
      std::memcpy(p, &x, sizeof(x));
    } else {
      store_rounded(p, ref.dtype, 0, value);
    }
  }

  void randomize(std::mt19937& random) {
    std::uniform_real_distribution<double> unit(-1.0, 1.0);
    std::uniform_int_distribution<int> byte(-128, 127);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j)
        set(i, j,
            ref.dtype == DType::kI8 || ref.dtype == DType::kI32 ? byte(random) : unit(random));
  }

  /// Everything but the elements.
  std::vector<char> gaps() const {
    std::vector<char> copy = bytes;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < cols; ++j) {
        const auto at = static_cast<const char*>(element_at(ref, i, j)) - bytes.data();
        std::memset(copy.data() + at, 0, size_of(ref.dtype));
      }
    return copy;
  }
};

struct Types {
  DType a, b, d, compute;
};

constexpr Types kTypes[] = {
    {DType::kF32, DType::kF32, DType::kF32, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kBF16, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kF32, DType::kF32},
    {DType::kF16, DType::kF16, DType::kF16, DType::kF32},
    {DType::kBF16, DType::kF32, DType::kF32, DType::kF32},
    {DType::kF16, DType::kBF16, DType::kBF16, DType::kF32},
    {DType::kI8, DType::kBF16, DType::kF16, DType::kF32},
    {DType::kF32, DType::kI8, DType::kF32, DType::kF32},
    {DType::kF64, DType::kF64, DType::kF64, DType::kF64},
    {DType::kF32, DType::kF64, DType::kF16, DType::kF64},
    {DType::kF64, DType::kBF16, DType::kBF16, DType::kF64},
    {DType::kF16, DType::kF32, DType::kF64, DType::kF64},
    {DType::kI8, DType::kI8, DType::kI32, DType::kI32},
    {DType::kI8, DType::kI8, DType::kF32, DType::kI32},
    {DType::kI8, DType::kI8, DType::kBF16, DType::kI32},
};

double epsilon_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      return 0;
  }
}

GemmPlan plan_for(Isa isa, const Types& types, int threads) {
  const GemmKernel* kernel = find_kernel(isa, types.a, types.b, types.compute);
  return {.kernel = kernel, .blocking = make_blocking(*kernel, cache_sizes()), .threads = threads};
}

class OnEveryIsa : public testing::TestWithParam<Isa> {};

struct Shape {
  int64_t m, n, k;
};

/// One product with or without everything the epilogue offers, checked element by element.
void check_product(Isa isa, const Types& types, Shape shape, const Layout (&layouts)[3],
                   bool options, std::mt19937& random) {
  Matrix a(types.a, shape.m, shape.k, layouts[0]);
  Matrix b(types.b, shape.k, shape.n, layouts[1]);
  Matrix d(types.d, shape.m, shape.n, layouts[2]);
  a.randomize(random);
  b.randomize(random);
  const bool integer = types.d == DType::kI32;
  Matrix c(integer ? DType::kI32 : DType::kF32, shape.m, shape.n, Layout::kRowMajor);
  c.randomize(random);
  Matrix vectors(DType::kF32, 3, std::max(shape.m, shape.n), Layout::kGaps);
  vectors.randomize(random);
  const auto vector = [&](int64_t i) {
    return VectorRef{element_at(vectors.ref, i, 0), DType::kF32, vectors.ref.col_stride};
  };
  GemmItem item{.m = shape.m, .n = shape.n, .k = shape.k, .a = a.ref, .b = b.ref, .d = d.ref};
  if (options) {
    item.c = c.ref;
    item.beta = integer ? 1.0 : -0.75;
    if (!integer) {
      item.alpha = 1.5;
      item.bias = vector(0);
      item.bias_scale = vector(1);
      item.row_scale = vector(2);
    }
  }
  const std::vector<char> gaps_before = d.gaps();
  const Status status = multiply_items({item}, plan_for(isa, types, 2));
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(d.gaps(), gaps_before) << "wrote outside the elements of d";

  // Rows of A and columns of B, widened once.
  std::vector<double> a_rows, b_columns;
  for (int64_t i = 0; i < shape.m; ++i)
    for (int64_t p = 0; p < shape.k; ++p) a_rows.push_back(a.at(i, p));
  for (int64_t j = 0; j < shape.n; ++j)
    for (int64_t p = 0; p < shape.k; ++p) b_columns.push_back(b.at(p, j));
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t p = 0; p < shape.k; ++p) {
        const double product = a_rows[static_cast<size_t>(i * shape.k + p)] *
                               b_columns[static_cast<size_t>(j * shape.k + p)];
        sum += product;
        magnitude += std::fabs(product);
      }
      double expected = sum;
      if (options) {
        if (!integer) {
          expected = 1.5 * sum + vectors.at(1, i) * vectors.at(0, j);
          expected *= vectors.at(2, i);
          magnitude = 1.5 * magnitude + 2;
        }
        expected += item.beta * c.at(i, j);
        magnitude += std::fabs(c.at(i, j));
      }
      // Each of k additions and a handful of epilogue steps rounds once; the result rounds once.
      const double rounding = types.compute == DType::kF64   ? 0x1p-53
                              : types.compute == DType::kF32 ? 0x1p-24
                                                             : 0;
      const double scale = types.d == DType::kF16 ? 0x1p-25 : 0x1p-126;  // subnormals of the output
      const double allowed = (static_cast<double>(shape.k) + 8) * (rounding + 0x1p-53) * magnitude +
                             epsilon_of(types.d) * std::fabs(expected) * 1.01 + scale;
      const double error = std::fabs(d.at(i, j) - expected);
      const double share = integer ? error : error / allowed;
      ASSERT_LE(share, integer ? 0.0 : 1.0)
          << "element [" << i << ", " << j << "] is " << d.at(i, j) << ", expected " << expected
          << "; m " << shape.m << " n " << shape.n << " k " << shape.k << ", " << name_of(types.a)
          << " x " << name_of(types.b) << " -> " << name_of(types.d);
    }
  }
}

TEST_P(OnEveryIsa, MatchesPlainLoops) {
  std::mt19937 random(7);
  constexpr Layout kLayouts[] = {Layout::kRowMajor, Layout::kColumnMajor, Layout::kGaps};
  constexpr int64_t kM[] = {1, 2, 5, 6, 7, 13, 14, 15, 16, 29, 63, 64, 65, 66, 100, 129};
  constexpr int64_t kN[] = {1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130};
  constexpr int64_t kK[] = {0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130, 257};
  const auto pick = [&](const auto& values) {
    return values[std::uniform_int_distribution<size_t>(0, std::size(values) - 1)(random)];
  };
  for (const Types& types : kTypes) {
    for (int round = 0; round < 24; ++round) {
      const Layout layouts[3] = {pick(kLayouts), pick(kLayouts), pick(kLayouts)};
      const Shape shape{pick(kM), pick(kN), pick(kK)};
      ASSERT_NO_FATAL_FAILURE(
          check_product(GetParam(), types, shape, layouts, round % 2 == 1, random));
    }
  }
}

/// Several blocks of k, n and panels of A.
TEST_P(OnEveryIsa, MatchesPlainLoopsBeyondOneBlock) {
  std::mt19937 random(11);
  constexpr Layout kRow = Layout::kRowMajor, kColumn = Layout::kColumnMajor;
  for (const Types& types : {kTypes[0], kTypes[1], kTypes[8], kTypes[12]}) {
    for (const Shape shape :
         {Shape{3, 40, 2500}, Shape{70, 33, 1300}, Shape{70, 900, 300}, Shape{50, 270, 1024}}) {
      ASSERT_NO_FATAL_FAILURE(
          check_product(GetParam(), types, shape, {kRow, kRow, kRow}, false, random));
      ASSERT_NO_FATAL_FAILURE(
          check_product(GetParam(), types, shape, {kColumn, kColumn, kRow}, true, random));
    }
  }
}

/// int8 sums wrap: 70000 products of (-128)^2 pass 2^30 and, four times over, 2^32.
TEST_P(OnEveryIsa, Int8SumsWrap) {
  const int64_t k = 300000;
  const Types types{DType::kI8, DType::kI8, DType::kI32, DType::kI32};
  Matrix a(DType::kI8, 2, k, Layout::kRowMajor), b(DType::kI8, k, 3, Layout::kColumnMajor);
  Matrix d(DType::kI32, 2, 3, Layout::kRowMajor);
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < 2; ++i) a.set(i, p, i == 0 ? -128 : 127);
    for (int64_t j = 0; j < 3; ++j) b.set(p, j, j == 0 ? -128 : j == 1 ? 127 : -1);
  }
  const GemmItem item{.m = 2, .n = 3, .k = k, .a = a.ref, .b = b.ref, .d = d.ref};
  ASSERT_TRUE(multiply_items({item}, plan_for(GetParam(), types, 1)).ok());
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      const int64_t sum = k * static_cast<int64_t>(a.at(i, 0)) * static_cast<int64_t>(b.at(0, j));
      EXPECT_EQ(d.at(i, j), static_cast<int32_t>(static_cast<uint32_t>(sum))) << i << ", " << j;
    }
  }
}

/// A row computed alone has the bits it has among many, whatever the layouts and the number of
/// threads.
TEST_P(OnEveryIsa, BitsDependOnNeitherRowsNorThreads) {
  std::mt19937 random(3);
  const int64_t m = 150, n = 100, k = 1100;
  for (const Types& types : {kTypes[0], kTypes[1], kTypes[3], kTypes[8], kTypes[13]}) {
    for (const Layout b_layout : {Layout::kRowMajor, Layout::kColumnMajor, Layout::kGaps}) {
      Matrix a(types.a, m, k, Layout::kRowMajor), b(types.b, k, n, b_layout);
      Matrix all(types.d, m, n, Layout::kRowMajor), some(types.d, m, n, Layout::kRowMajor);
      a.randomize(random);
      b.randomize(random);
      const GemmItem item{.m = m, .n = n, .k = k, .a = a.ref, .b = b.ref, .d = all.ref};
      ASSERT_TRUE(multiply_items({item}, plan_for(GetParam(), types, 1)).ok());
      int threads = 1;
      for (const int64_t rows : {1, 3, 20, 64, 65, 149, 150}) {
        GemmItem part = item;
        part.m = rows;
        part.d = some.ref;
        ASSERT_TRUE(multiply_items({part}, plan_for(GetParam(), types, threads)).ok());
        for (int64_t i = 0; i < rows; ++i) {
          ASSERT_EQ(std::memcmp(element_at(all.ref, i, 0), element_at(some.ref, i, 0),
                                static_cast<size_t>(n) * size_of(types.d)),
                    0)
              << "row " << i << " of " << rows << " with " << threads << " threads, "
              << name_of(types.a);
        }
        threads = threads % 5 + 1;
      }
    }
  }
}

/// Whoever rounds to bf16, the tile that sums or the epilogue, gives the bits of the f32 sums
/// rounded once: NaN, infinities and sums beyond the largest bf16 too, and where results pass the
/// cache.
TEST_P(OnEveryIsa, Bf16ResultsAreTheSumsRounded) {
  std::mt19937 random(6);
  const Types &to_f32 = kTypes[2], &to_bf16 = kTypes[1];
  for (const Shape& shape : {Shape{5, 70, 64}, Shape{90, 101, 1100}, Shape{1100, 1149, 40}}) {
    Matrix a(to_f32.a, shape.m, shape.k, Layout::kRowMajor);
    Matrix b(to_f32.b, shape.k, shape.n, Layout::kColumnMajor);
    Matrix sums(to_f32.d, shape.m, shape.n, Layout::kRowMajor);
    Matrix rounded(to_bf16.d, shape.m, shape.n, Layout::kRowMajor);
    // Rows of 1152 values from a whole line on are whole lines.
    rounded.bytes.resize(rounded.bytes.size() + 64);
    const auto start = reinterpret_cast<uintptr_t>(rounded.bytes.data());
    rounded.ref.data = rounded.bytes.data() + (64 - start % 64) % 64;
    a.randomize(random);
    b.randomize(random);
    a.set(1, 7, std::numeric_limits<double>::quiet_NaN());
    a.set(2, 8, -std::numeric_limits<double>::infinity());
    for (int64_t p = 0; p < shape.k; ++p) a.set(3, p, 0);
    a.set(3, 9, 0x1.fep127);
    b.set(9, 4, 1.0), b.set(10, 4, 1.0), a.set(3, 10, 0x1p119);  // half a unit more: infinity
    GemmItem item{.m = shape.m, .n = shape.n, .k = shape.k, .a = a.ref, .b = b.ref, .d = sums.ref};
    ASSERT_TRUE(multiply_items({item}, plan_for(GetParam(), to_f32, 2)).ok());
    item.d = rounded.ref;
    ASSERT_TRUE(multiply_items({item}, plan_for(GetParam(), to_bf16, 2)).ok());
    for (int64_t i = 0; i < shape.m; ++i) {
      for (int64_t j = 0; j < shape.n; ++j) {
        float sum;
        uint16_t bits;
        std::memcpy(&sum, element_at(sums.ref, i, j), sizeof(sum));
        std::memcpy(&bits, element_at(rounded.ref, i, j), sizeof(bits));
        ASSERT_EQ(bits, float_to_bf16(sum)) << i << ", " << j << " of " << shape.m << " rows";
      }
    }
    ASSERT_TRUE(std::isinf(rounded.at(3, 4))) << rounded.at(3, 4);
  }
}

/// beta of 0 must not read C, and NaN in one row of A stays in that row.
TEST_P(OnEveryIsa, NanStaysInItsRow) {
  std::mt19937 random(5);
  const Types& types = kTypes[0];
  for (const int64_t m : {5, 90}) {
    Matrix a(types.a, m, 40, Layout::kRowMajor), b(types.b, 40, 50, Layout::kRowMajor);
    Matrix d(types.d, m, 50, Layout::kRowMajor);
    a.randomize(random);
    b.randomize(random);
    a.set(2, 7, std::numeric_limits<double>::quiet_NaN());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < 50; ++j) d.set(i, j, std::numeric_limits<double>::quiet_NaN());
    GemmItem item{.m = m, .n = 50, .k = 40, .a = a.ref, .b = b.ref, .c = d.ref, .d = d.ref};
    ASSERT_TRUE(multiply_items({item}, plan_for(GetParam(), types, 2)).ok());
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < 50; ++j) ASSERT_EQ(std::isnan(d.at(i, j)), i == 2) << i << ", " << j;
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, OnEveryIsa, testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(CpuIsa, UnknownNameListsWhatThereIs) {
  Isa isa;
  const Status status = resolve_isa("avx1024", &isa);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), testing::HasSubstr("avx1024"));
  EXPECT_THAT(status.message(), testing::HasSubstr("scalar"));
}

TEST(CpuIsa, EveryAvailableNameResolvesToItself) {
  for (const Isa available : available_isas()) {
    Isa isa;
    ASSERT_TRUE(resolve_isa(name_of(available), &isa).ok());
    EXPECT_EQ(isa, available);
  }
  Isa best;
  ASSERT_TRUE(resolve_isa("", &best).ok());
  EXPECT_EQ(best, available_isas().back());
}

}  // namespace
}  // namespace cadre::cpu
