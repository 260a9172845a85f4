// Few rows, whose weights are read as they lie: the bits of packed weights for every type, layout
// and address, and no byte beyond the weights is touched, on every instruction set this machine
// has.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/convert.h"
#include "cpu/gemm_driver.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "unit/guarded_memory.h"

namespace cadre::cpu {
namespace {

struct Types {
  DType a, b, compute;
};

constexpr Types kTypes[] = {
    {DType::kF32, DType::kF32, DType::kF32},   {DType::kF16, DType::kF16, DType::kF32},
    {DType::kBF16, DType::kBF16, DType::kF32}, {DType::kF32, DType::kBF16, DType::kF32},
    {DType::kBF16, DType::kF16, DType::kF32},  {DType::kF64, DType::kF64, DType::kF64},
    {DType::kF64, DType::kF16, DType::kF64},   {DType::kI8, DType::kI8, DType::kI32},
};

struct Shape {
  int64_t m, n, k;
};

// Rows: around tiles of 6, 9 and 14 and around 8; columns: parts of panels, whole ones and both;
// k: parts of vectors, and several panels of A. The last is wider than what is read side
// by side, where L2 is 1 MiB.
constexpr Shape kShapes[] = {
    {1, 31, 33},   {1, 32, 32},   {1, 97, 1100},  {1, 1100, 70}, {2, 64, 96},   {3, 48, 64},
    {4, 133, 515}, {5, 65, 31},   {6, 32, 1024},  {7, 129, 160}, {8, 96, 2100}, {9, 66, 130},
    {13, 50, 257}, {14, 100, 64}, {15, 160, 129}, {16, 64, 600}, {17, 33, 96},  {29, 70, 1030},
    {48, 97, 65},  {60, 130, 96}, {2, 4200, 33}};

/// One product, its weights in any place and order.
class Product {
 public:
  Product(const Types& types, const Shape& shape, uint32_t seed)
      : types_(types),
        shape_(shape),
        a_(static_cast<size_t>(shape.m * shape.k) * size_of(types.a)),
        b_(static_cast<size_t>(shape.k * shape.n * 2) * size_of(types.b)) {
    std::mt19937 random(seed);
    fill(a_.data(), types.a, shape.m * shape.k, random);
    fill(b_.data(), types.b, shape.k * shape.n * 2, random);
  }

  /// B with columns that aren't contiguous in either direction: always packed.
  MatrixRef packed_b() { return {b_.data(), types_.b, 2 * shape_.n, 2}; }

  static int64_t span(int64_t rows, int64_t columns, const MatrixRef& b) {
    return ((rows - 1) * b.row_stride + (columns - 1) * b.col_stride + 1) *
           static_cast<int64_t>(size_of(b.dtype));
  }

  /// The same values in another order.
  void copy_b(const MatrixRef& to) {
    const MatrixRef from = packed_b();
    for (int64_t p = 0; p < shape_.k; ++p)
      for (int64_t j = 0; j < shape_.n; ++j)
        std::memcpy(element_at(to, p, j), element_at(from, p, j), size_of(types_.b));
  }

  std::vector<char> multiply(const GemmKernel& kernel, const MatrixRef& b, int threads) {
    std::vector<char> out(static_cast<size_t>(shape_.m * shape_.n) * size_of(kernel.acc_dtype),
                          '\xff');
    const GemmItem item{.m = shape_.m,
                        .n = shape_.n,
                        .k = shape_.k,
                        .a = {a_.data(), types_.a, shape_.k, 1},
                        .b = b,
                        .d = {out.data(), kernel.acc_dtype, shape_.n, 1}};
    const GemmPlan plan{&kernel, make_blocking(kernel, cache_sizes()), threads};
    EXPECT_TRUE(multiply_items({item}, plan).ok());
    return out;
  }

 private:
  static void fill(char* data, DType dtype, int64_t elements, std::mt19937& random) {
    std::uniform_real_distribution<double> unit(-1.0, 1.0);
    std::uniform_int_distribution<int> byte(-128, 127);
    for (int64_t i = 0; i < elements; ++i) {
      if (dtype == DType::kI8) {
        data[i] = static_cast<char>(byte(random));
      } else {
        store_rounded(data, dtype, i, unit(random));
      }
    }
  }

  Types types_;
  Shape shape_;
  std::vector<char> a_, b_;
};

struct Place {
  bool transposed;      // [n, k] instead of [k, n]
  int64_t gap;          // elements between two rows of that
  bool at_end;          // next to the page behind it
  int64_t shift_bytes;  // from there: 1 leaves no element aligned
};

constexpr Place kPlaces[] = {{false, 0, true, 0},  {true, 0, true, 0},   {false, 5, true, 1},
                             {true, 3, true, 1},   {false, 7, false, 0}, {true, 64, false, 0},
                             {false, 0, false, 1}, {true, 1, false, 1}};

void check(const GemmKernel& kernel, const Types& types) {
  for (const Shape& shape : kShapes) {
    Product product(types, shape, 7);
    const std::vector<char> expected = product.multiply(kernel, product.packed_b(), 1);
    int threads = 1;
    for (const Place& place : kPlaces) {
      MatrixRef b{nullptr, types.b, place.transposed ? 1 : shape.n + place.gap,
                  place.transposed ? shape.k + place.gap : 1};
      const GuardedMemory memory(Product::span(shape.k, shape.n, b), place.at_end,
                                 place.shift_bytes);
      ASSERT_NE(memory.data(), nullptr);
      b.data = memory.data();
      product.copy_b(b);
      EXPECT_EQ(product.multiply(kernel, b, threads), expected)
          << kernel.name << ", " << name_of(types.a) << " x " << name_of(types.b) << ", " << shape.m
          << " x " << shape.n << " x " << shape.k << (place.transposed ? ", [n, k]" : ", [k, n]")
          << ", gap " << place.gap << ", shift " << place.shift_bytes << ", " << threads
          << " threads";
      threads = threads % 5 + 1;
    }
  }
}

class FewRowsOnEveryIsa : public testing::TestWithParam<Isa> {};

TEST_P(FewRowsOnEveryIsa, WeightsAsTheyLieGiveTheBitsOfPackedOnes) {
  for (const Types& types : kTypes) {
    check(*find_kernel(GetParam(), types.a, types.b, types.compute), types);
  }
}

/// Every bit pattern of 16 bits, as a product with A = [0 … 1 … 0]. Column j of B holds those of
/// top byte j, so that infinities and NaN, which spoil a whole column, have columns of their own.
TEST_P(FewRowsOnEveryIsa, EveryValueIsWidenedExactly) {
  constexpr int64_t kSize = 256;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const GemmKernel& kernel = *find_kernel(GetParam(), DType::kF32, dtype, DType::kF32);
    const GemmPlan plan{&kernel, make_blocking(kernel, cache_sizes()), 1};
    for (const bool transposed : {false, true}) {
      std::vector<uint16_t> bits(kSize * kSize);
      MatrixRef b{bits.data(), dtype, transposed ? 1 : kSize, transposed ? kSize : 1};
      for (int64_t p = 0; p < kSize; ++p)
        for (int64_t j = 0; j < kSize; ++j)
          *static_cast<uint16_t*>(element_at(b, p, j)) = static_cast<uint16_t>(j << 8 | p);
      const auto value = [&](int64_t p, int64_t j) {
        return load_as_double(element_at(b, p, j), dtype, 0);
      };
      std::vector<bool> finite(kSize, true);
      for (int64_t p = 0; p < kSize; ++p)
        for (int64_t j = 0; j < kSize; ++j)
          if (!std::isfinite(value(p, j))) finite[static_cast<size_t>(j)] = false;
      for (int64_t at = 0; at < kSize; ++at) {
        std::vector<float> a(kSize, 0.0f), out(kSize, -1.0f);
        a[static_cast<size_t>(at)] = 1.0f;
        const GemmItem item{.m = 1,
                            .n = kSize,
                            .k = kSize,
                            .a = {a.data(), DType::kF32, kSize, 1},
                            .b = b,
                            .d = {out.data(), DType::kF32, kSize, 1}};
        ASSERT_TRUE(multiply_items({item}, plan).ok());
        for (int64_t j = 0; j < kSize; ++j) {
          const auto got = static_cast<double>(out[static_cast<size_t>(j)]);
          ASSERT_TRUE(finite[static_cast<size_t>(j)] ? got == value(at, j) : std::isnan(got))
              << kernel.name << ", " << name_of(dtype) << " [" << at << ", " << j << "] is " << got
              << ", expected " << value(at, j) << (transposed ? ", [n, k]" : ", [k, n]");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, FewRowsOnEveryIsa, testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace cadre::cpu
