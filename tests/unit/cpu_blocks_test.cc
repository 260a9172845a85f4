// Many rows in many blocks, on every instruction set this machine has.
#include <gtest/gtest.h>

#include <string>

#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "tests/support/sanitized.h"
#include "unit/small_blocks.h"

namespace cadre::cpu {
namespace {

class BlocksOnEveryIsa : public testing::TestWithParam<Isa> {};

TEST_P(BlocksOnEveryIsa, GiveTheBitsOfElementsPackedOneByOne) {
  struct Types {
    DType a, b, compute;
  };
  for (const Types& types :
       {Types{DType::kF32, DType::kF32, DType::kF32},
        Types{DType::kBF16, DType::kBF16, DType::kF32},
        Types{DType::kF32, DType::kBF16, DType::kF32}, Types{DType::kF64, DType::kF64, DType::kF64},
        Types{DType::kI8, DType::kI8, DType::kI32}}) {
    // All of them in plain loops under a sanitizer would take half a minute.
    if (tests::kSanitized && GetParam() == Isa::kScalar && types.b != DType::kF32 &&
        types.b != DType::kI8)
      continue;
    const GemmKernel& kernel = *find_kernel(GetParam(), types.a, types.b, types.compute);
    SmallBlocks(kernel, types.a, types.b).check();
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, BlocksOnEveryIsa, testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace cadre::cpu
