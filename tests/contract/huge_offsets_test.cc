// Offsets beyond 2^31 elements in host memory; the device's version is in tests/gpu.
#include "tests/contract/suite.h"

namespace cadre::contract {
namespace {

CADRE_CONTRACT_SUITE(GmmHugeOffsets, "", product_types());

TEST_P(GmmHugeOffsets, OffsetsAre64Bit) { expect(offsets_are_64_bit); }

}  // namespace
}  // namespace cadre::contract
