// Activations in the epilogue, on every instruction set this machine has.
#include <gtest/gtest.h>

#include <string>

#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "unit/activated_products.h"

namespace cadre::cpu {
namespace {

class ActivationOnEveryIsa : public testing::TestWithParam<Isa> {};

TEST_P(ActivationOnEveryIsa, GivesTheBitsOfActivatingThePlainResults) {
  struct Types {
    DType a, b, compute, out;
  };
  for (const Types& types : {Types{DType::kF32, DType::kF32, DType::kF32, DType::kF32},
                             Types{DType::kBF16, DType::kBF16, DType::kF32, DType::kBF16},
                             Types{DType::kF32, DType::kF16, DType::kF32, DType::kF16},
                             Types{DType::kF64, DType::kF64, DType::kF64, DType::kF64},
                             Types{DType::kI8, DType::kI8, DType::kI32, DType::kF32}}) {
    if (tests::kSanitized && GetParam() == Isa::kScalar && types.b != DType::kF32) continue;
    const GemmKernel& kernel = *find_kernel(GetParam(), types.a, types.b, types.compute);
    ActivatedProducts(kernel, types.a, types.b, types.out).check();
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, ActivationOnEveryIsa, testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace cadre::cpu
