// Products of rows by index: the bits of the product of these rows copied first, whichever way
// through a unit they take.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "core/convert.h"
#include "cpu/gemm_driver.h"

namespace cadre::cpu {

class IndexedRows {
 public:
  IndexedRows(const GemmKernel& kernel, DType a, DType b)
      : kernel_(kernel), a_dtype_(a), b_dtype_(b) {}

  void check() {
    int threads = 1;
    for (const Shape& shape : kShapes) {
      for (const bool transposed : {false, true}) {
        check_gmm(shape, transposed, threads);
        threads = threads % 3 + 1;
      }
      check_tgmm(shape, threads);
    }
  }

 private:
  struct Shape {
    int64_t m, n, k;
  };
  // One row, resident, several row tiles, many rows in many blocks; whole panels and steps (turned
  // over on AMX) and parts of them.
  static constexpr Shape kShapes[] = {{1, 96, 128},   {7, 65, 61},     {33, 64, 512},
                                      {49, 130, 600}, {160, 96, 1024}, {200, 300, 77},
                                      {5, 40, 3000}};
  static constexpr int64_t kSource = 37;  // rows to choose from
  static constexpr int64_t kGap = 3;      // elements between them

  struct Rows {
    std::vector<char> bytes;
    MatrixRef ref;
  };

  Rows random_rows(DType dtype, int64_t rows, int64_t cols) {
    Rows made{std::vector<char>(static_cast<size_t>(rows * (cols + kGap)) * size_of(dtype)), {}};
    std::uniform_real_distribution<double> unit(-1.0, 1.0);
    for (int64_t i = 0; i < rows * (cols + kGap); ++i) {
      if (dtype == DType::kI8) {
        made.bytes[static_cast<size_t>(i)] = static_cast<char>(random_());
      } else {
        store_rounded(made.bytes.data(), dtype, i, unit(random_));
      }
    }
    made.ref = {made.bytes.data(), dtype, cols + kGap, 1};
    return made;
  }

  std::vector<int64_t> random_index(int64_t count) {
    std::vector<int64_t> index(static_cast<size_t>(count));
    for (int64_t& row : index) row = static_cast<int64_t>(random_() % kSource);
    return index;
  }

  static Rows copied(const Rows& source, const std::vector<int64_t>& index, int64_t cols) {
    const size_t size = size_of(source.ref.dtype);
    Rows made{std::vector<char>(index.size() * static_cast<size_t>(cols) * size), {}};
    made.ref = {made.bytes.data(), source.ref.dtype, cols, 1};
    for (size_t i = 0; i < index.size(); ++i) {
      std::memcpy(element_at(made.ref, static_cast<int64_t>(i), 0),
                  element_at(source.ref, index[i], 0), static_cast<size_t>(cols) * size);
    }
    return made;
  }

  static MatrixRef transposed(const MatrixRef& m) {
    return {m.data, m.dtype, m.col_stride, m.row_stride};
  }

  std::vector<char> multiply(GemmItem item, int threads) const {
    std::vector<char> out(static_cast<size_t>(item.m * item.n) * size_of(kernel_.acc_dtype),
                          '\xff');
    item.d = {out.data(), kernel_.acc_dtype, item.n, 1};
    const GemmPlan plan{&kernel_, make_blocking(kernel_, cache_sizes()), threads};
    EXPECT_TRUE(multiply_items({item}, plan).ok());
    return out;
  }

  void check_gmm(const Shape& shape, bool transposed_b, int threads) {
    const Rows source = random_rows(a_dtype_, kSource, shape.k);
    const std::vector<int64_t> index = random_index(shape.m);
    const std::vector<int32_t> narrow(index.begin(), index.end());
    const Rows a = copied(source, index, shape.k);
    const Rows b = transposed_b ? random_rows(b_dtype_, shape.n, shape.k)
                                : random_rows(b_dtype_, shape.k, shape.n);
    GemmItem item{.m = shape.m, .n = shape.n, .k = shape.k, .a = a.ref};
    item.b = transposed_b ? transposed(b.ref) : b.ref;
    const std::vector<char> expected = multiply(item, 1);
    item.a = source.ref;
    item.a_rows = {index.data(), DType::kI64, 1};
    EXPECT_EQ(multiply(item, threads), expected) << "gmm " << at(shape) << transposed_b;
    item.a_rows = {narrow.data(), DType::kI32, 1};
    EXPECT_EQ(multiply(item, threads), expected) << "gmm, i32 " << at(shape) << transposed_b;
  }

  /// A is [k rows, m] transposed: what is summed over is taken by index.
  void check_tgmm(const Shape& shape, int threads) {
    const Rows a_source = random_rows(a_dtype_, kSource, shape.m);
    const Rows b_source = random_rows(b_dtype_, kSource, shape.n);
    const std::vector<int64_t> a_index = random_index(shape.k), b_index = random_index(shape.k);
    const Rows a = copied(a_source, a_index, shape.m), b = copied(b_source, b_index, shape.n);
    GemmItem item{.m = shape.m, .n = shape.n, .k = shape.k, .a = transposed(a.ref), .b = b.ref};
    const std::vector<char> expected = multiply(item, 1);
    GemmItem lhs = item;
    lhs.a = transposed(a_source.ref);
    lhs.a_cols = {a_index.data(), DType::kI64, 1};
    EXPECT_EQ(multiply(lhs, threads), expected) << "tgmm lhs " << at(shape);
    GemmItem rhs = item;
    rhs.b = b_source.ref;
    rhs.b_rows = {b_index.data(), DType::kI64, 1};
    EXPECT_EQ(multiply(rhs, threads), expected) << "tgmm rhs " << at(shape);
    lhs.b = rhs.b;
    lhs.b_rows = rhs.b_rows;
    EXPECT_EQ(multiply(lhs, threads), expected) << "tgmm both " << at(shape);
  }

  std::string at(const Shape& shape) const {
    return std::string(kernel_.name) + " " + std::to_string(shape.m) + " x " +
           std::to_string(shape.n) + " x " + std::to_string(shape.k) + " ";
  }

  const GemmKernel& kernel_;
  DType a_dtype_, b_dtype_;
  std::mt19937 random_{11};
};

}  // namespace cadre::cpu
