// A stride of 0 is a broadcast, for everything that is only read, on every backend.
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(Strides0, "", product_types());

TEST_P(Strides0, GmmReadsBroadcastOperands) { expect(broadcast::gmm_operands); }
TEST_P(Strides0, TgmmReadsBroadcastOperands) { expect(broadcast::tgmm_operands); }
TEST_P(Strides0, GroupedGemmReadsBroadcastOperands) { expect(broadcast::grouped_gemm_operands); }

CADRE_CONTRACT_SUITE(Strides0OfBiasGrad, "", bias_grad_types());

TEST_P(Strides0OfBiasGrad, ReadsBroadcastOperands) { expect(broadcast::bias_grad_operands); }

}  // namespace
}  // namespace cadre::contract
