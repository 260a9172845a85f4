// Operands at odd addresses: the same bits as aligned ones, for every type that is read or written.
// The sanitizers see whether a kernel takes such an address for an aligned one.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/convert.h"
#include "cpu/gemm_driver.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"

namespace cadre::cpu {
namespace {

/// Elements that begin `shift` bytes behind an aligned address.
class Elements {
 public:
  Elements(DType dtype, int64_t count, int64_t shift, uint32_t seed)
      : bytes_(static_cast<size_t>(count) * size_of(dtype) + 64), shift_(shift) {
    std::mt19937 random(seed);
    std::uniform_int_distribution<int> values(-9, 9);
    for (int64_t i = 0; i < count; ++i) {
      const int x = values(random);
      if (dtype == DType::kI8) {
        const auto value = static_cast<int8_t>(x);
        std::memcpy(data() + i, &value, sizeof(value));
      } else if (dtype == DType::kI32) {
        std::memcpy(data() + 4 * i, &x, sizeof(x));
      } else {
        store_rounded(data(), dtype, i, 0.37 * x);
      }
    }
  }
  char* data() { return bytes_.data() + shift_; }

 private:
  std::vector<char> bytes_;
  int64_t shift_;
};

struct Types {
  DType operands, compute, out;
};

std::vector<char> product(const Types& types, Isa isa, int64_t rows, bool options, int64_t shift) {
  constexpr int64_t kN = 45, kK = 37;
  Elements a(types.operands, rows * kK, shift, 1), b(types.operands, kK * kN, shift, 2);
  Elements d(types.out, rows * kN, shift, 3), c(types.out, rows * kN, shift, 4);
  const DType vector = types.compute == DType::kF64 ? DType::kF64 : DType::kF32;
  Elements bias(vector, kN, shift, 5), scale(vector, rows, shift, 6);
  GemmItem item{.m = rows, .n = kN, .k = kK};
  item.a = {a.data(), types.operands, kK, 1};
  item.b = {b.data(), types.operands, kN, 1};
  item.d = {d.data(), types.out, kN, 1};
  if (options) {
    item.c = {c.data(), types.out, kN, 1};
    item.beta = 1;
    if (types.out != DType::kI32) {
      item.bias = {bias.data(), vector, 1};
      item.row_scale = {scale.data(), vector, 1};
      item.alpha = 0.5;
    }
  }
  const GemmKernel* kernel = find_kernel(isa, types.operands, types.operands, types.compute);
  const GemmPlan plan{
      .kernel = kernel, .blocking = make_blocking(*kernel, cache_sizes()), .threads = 1};
  EXPECT_TRUE(multiply_items({item}, plan).ok());
  return {d.data(), d.data() + rows * kN * static_cast<int64_t>(size_of(types.out))};
}

TEST(CpuUnaligned, OddAddressesGiveTheBitsOfAlignedOnes) {
  const Types cases[] = {
      {DType::kF64, DType::kF64, DType::kF64},  {DType::kF64, DType::kF64, DType::kF32},
      {DType::kF64, DType::kF64, DType::kBF16}, {DType::kF64, DType::kF64, DType::kF16},
      {DType::kF32, DType::kF32, DType::kF64},  {DType::kF32, DType::kF32, DType::kF32},
      {DType::kF32, DType::kF32, DType::kBF16}, {DType::kF32, DType::kF32, DType::kF16},
      {DType::kBF16, DType::kF32, DType::kF32}, {DType::kBF16, DType::kF32, DType::kBF16},
      {DType::kF16, DType::kF32, DType::kF16},  {DType::kI8, DType::kI32, DType::kI32},
      {DType::kI8, DType::kI32, DType::kF32},   {DType::kI8, DType::kI32, DType::kBF16},
      {DType::kI8, DType::kI32, DType::kF16},   {DType::kI8, DType::kI32, DType::kF64},
  };
  for (const Isa isa : available_isas()) {
    for (const Types& types : cases) {
      for (const int64_t rows : {1, 3, 40}) {
        for (const bool options : {false, true}) {
          SCOPED_TRACE(std::string(name_of(isa)) + ", case " + std::to_string(&types - cases) +
                       ", rows " + std::to_string(rows) + (options ? ", options" : ""));
          EXPECT_EQ(product(types, isa, rows, options, 0), product(types, isa, rows, options, 1));
        }
      }
    }
  }
}

}  // namespace
}  // namespace cadre::cpu
