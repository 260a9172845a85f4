// Rows by index in the portable kernels: those that follow the index give the bits of the one that
// gets a copy, and say so.
#include "tests/contract/contract.h"
#include "tests/gpu/gpu_fixture.h"
#include "verify/case_call.h"

namespace cadre::tests {
namespace {

using verify::Case;

/// 160x256 takes a copy; not every device has it.
constexpr const char* kKernels[] = {"sm80/mma_128x128x32", "sm80/mma_128x128x64",
                                    "sm80/mma_128x256x64", "sm80/mma_160x256x64"};

class PortableRows : public GpuTest {
 protected:
  Context context_{ContextOptions{.backend = "cuda", .sm_count = 3}};
};

TEST_F(PortableRows, FollowingAnIndexGivesTheBitsOfACopy) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const bool transposed : {false, true}) {
      for (const int64_t k : {8, 136, 520}) {
        Case c = contract::gmm::basic({dtype, dtype, dtype});
        c.group_sizes = {130, 0, 1, 257, 33, 300};
        c.m = 130 + 1 + 257 + 33 + 300 + 9;
        c.k = k;
        c.n = 264;
        c.transpose_rhs = transposed;
        c.lhs_rows = 200;
        c.rows_dtype = transposed ? DType::kI64 : DType::kI32;
        std::vector<std::vector<std::byte>> results;
        for (const char* kernel : kKernels) {
          c.kernel = kernel;
          verify::CaseData data = verify::make_data(c, device_memory());
          std::string chosen;
          if (!verify::kernel_of(context_, c, data, &chosen).ok()) continue;
          data.upload();
          const Status status = verify::call(context_, c, data);
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_TRUE(device_memory().finish(context_).ok());
          data.download();
          results.push_back(data.out->all_bytes_after());
          EXPECT_EQ(results.front(), results.back()) << to_string(c);
        }
        EXPECT_GE(results.size(), 2u);
      }
    }
  }
}

}  // namespace
}  // namespace cadre::tests
