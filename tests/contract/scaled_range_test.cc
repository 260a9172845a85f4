// Scales whose product leaves f32's range, in host memory: docs/numerics.md says what holds there.
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(ScaledRange, "", scaled_types());

TEST_P(ScaledRange, ScalesWhoseProductLeavesF32) {
  expect(scaled::scales_whose_product_leaves_f32);
}

}  // namespace
}  // namespace cadre::contract
