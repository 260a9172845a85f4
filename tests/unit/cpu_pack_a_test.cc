// Packed rows of A: where each value goes, and that neither the source nor the room for a row tile
// is left.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "core/convert.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "unit/guarded_memory.h"

namespace cadre::cpu {
namespace {

/// How the rows of a source lie.
enum class Order { kRows, kColumns, kNeither };

MatrixRef strided(char* data, DType dtype, int64_t rows, int64_t k, Order order) {
  switch (order) {
    case Order::kRows:
      return {data, dtype, k, 1};
    case Order::kColumns:
      return {data, dtype, 1, rows};
    default:
      return {data, dtype, 2 * k, 2};
  }
}

/// Small enough to be exact in every type, and no two next to each other alike.
double value_at(int64_t row, int64_t p) { return static_cast<double>((row * 5 + p * 3) % 61 - 30); }

void expect_packed(const GemmKernel& kernel, DType dtype, int64_t rows, int64_t k, Order order) {
  SCOPED_TRACE(std::string(kernel.name) + " " + std::string(name_of(dtype)) + ", " +
               std::to_string(rows) + " x " + std::to_string(k) + ", order " +
               std::to_string(static_cast<int>(order)));
  const int64_t elements = order == Order::kNeither ? (2 * rows - 1) * k + k - 1 : rows * k;
  const GuardedMemory source(elements * static_cast<int64_t>(size_of(dtype)), true, 0);
  const GuardedMemory packed(rows * kPackedRowStride * kernel.granule_bytes, true, 0);
  ASSERT_NE(source.data(), nullptr);
  ASSERT_NE(packed.data(), nullptr);
  const MatrixRef a = strided(source.data(), dtype, rows, k, order);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t p = 0; p < k; ++p) {
      const int64_t index = row * a.row_stride + p * a.col_stride;
      if (dtype == DType::kI8) {
        source.data()[index] = static_cast<char>(value_at(row, p));
      } else {
        store_rounded(a.data, dtype, index, value_at(row, p));
      }
    }
  }
  kernel.pack_a(a, rows, k, packed.data());
  const auto* const values = reinterpret_cast<const float*>(packed.data());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t p = 0; p < k; ++p) {
      const int64_t place = kernel.interleaves_a ? p * rows + row : row * kPackedRowStride + p;
      ASSERT_EQ(values[place], value_at(row, p)) << "row " << row << ", k " << p;
    }
  }
}

TEST(CpuPackA, PutsEveryValueInItsPlaceAndNothingBeyond) {
  for (const Isa isa : available_isas()) {
    const GemmKernel& kernel = *find_kernel(isa, DType::kF32, DType::kF32, DType::kF32);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kF64})
      for (int64_t rows = 1; rows <= kernel.mr; ++rows)
        for (const int64_t k :
             {int64_t{1}, int64_t{15}, int64_t{17}, kMaxGranules - 1, kMaxGranules})
          for (const Order order : {Order::kRows, Order::kColumns, Order::kNeither})
            expect_packed(kernel, dtype, rows, k, order);
  }
}

}  // namespace
}  // namespace cadre::cpu
