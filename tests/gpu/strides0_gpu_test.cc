// Strides of 0 in shapes that the Hopper kernels take otherwise: the copy engine can't read them,
// so the portable kernels do. (What comes out is checked by ../contract/broadcast_test.cc.)
#include "tests/contract/contract.h"
#include "tests/gpu/gpu_fixture.h"
#include "verify/case_call.h"

namespace cadre::tests {
namespace {

using verify::Case;
using verify::COperand;

constexpr contract::DTypes kBf16{DType::kBF16, DType::kBF16, DType::kBF16};

class Strides0Gpu : public HopperTest {
 protected:
  std::string kernel_of(const Case& c) {
    const verify::CaseData data = verify::make_data(c, device_memory());
    std::string kernel;
    const Status status = verify::kernel_of(context, c, data, &kernel);
    EXPECT_TRUE(status.ok()) << status.message();
    return kernel;
  }

  Context context{BackendUnderTest::options_for("cuda")};
};

Case even(Case c) {
  c.k = 64;
  c.n = 136;
  return c;
}

TEST_F(Strides0Gpu, HopperKernelsLeaveBroadcastOperandsToPortableOnes) {
  const Case gmm = even(contract::gmm::basic(kBf16));
  const Case tgmm = even(contract::tgmm::basic(kBf16));
  ASSERT_TRUE(kernel_of(gmm).starts_with("sm90/"));
  ASSERT_TRUE(kernel_of(tgmm).starts_with("sm90/"));
  for (const Case& plain : {gmm, tgmm}) {
    for (const bool on_device : {false, true}) {
      Case c = plain;
      c.sizes_on_device = on_device;
      c.lhs_layout.broadcast_rows = true;
      EXPECT_TRUE(kernel_of(c).starts_with("sm80/"));
      c = plain;
      c.sizes_on_device = on_device;
      c.rhs_layout.broadcast_rows = true;
      EXPECT_TRUE(kernel_of(c).starts_with("sm80/"));
      c = plain;
      c.sizes_on_device = on_device;
      c.c = COperand::kSeparate;
      c.accumulate = true;
      c.c_layout.broadcast_rows = true;
      EXPECT_TRUE(kernel_of(c).starts_with("sm80/"));
    }
  }
  Case lists = gmm;
  lists.rhs_layout = {.form = Placement::kList, .broadcast_rows = true};
  EXPECT_TRUE(kernel_of(lists).starts_with("sm80/"));
  lists.rhs_layout.broadcast_rows = false;  // contiguous: no stride at all, and no refusal
  EXPECT_TRUE(kernel_of(lists).starts_with("sm90/"));
}

}  // namespace
}  // namespace cadre::tests
