// The Hopper kernel that applies an activation with a gate: right for every layout and option, and
// with the bits of a product and an activation of its own.
#include <numeric>

#include "core/text.h"
#include "tests/contract/contract.h"
#include "tests/gpu/gpu_fixture.h"
#include "verify/case_call.h"
#include "verify/check_case.h"

namespace cadre::tests {
namespace {

using contract::DTypes;
using verify::Case;
using verify::Presence;
using verify::Scalars;

constexpr const char* kKernel = "sm90/gmm_192x64_gated";
constexpr DTypes kBf16{DType::kBF16, DType::kBF16, DType::kBF16};
constexpr DTypes kF16{DType::kF16, DType::kF16, DType::kF16};

Case gated_case(const DTypes& types, ActivationKind kind, std::vector<int64_t> sizes, int64_t k,
                int64_t columns) {
  Case c = contract::gmm::basic(types);
  c.m = std::accumulate(sizes.begin(), sizes.end(), int64_t{70});
  c.group_sizes = std::move(sizes);
  c.k = k;
  c.n = 2 * columns;
  c.activation.kind = kind;
  c.activation.limit = 0.75;
  return c;
}

class HopperGated : public HopperTest {
 protected:
  void expect(Case c) {
    c.kernel = kKernel;
    const verify::Subject subject{
        .context = context_, .memory = device_memory(), .kernels = kKernel};
    for (const std::string& failure : verify::check_case(subject, c)) {
      ADD_FAILURE() << to_string(c) << ": " << failure;
    }
  }

  // Few multiprocessors: a CTA takes many tiles, and its warpgroups take turns.
  Context context_{ContextOptions{.backend = "cuda", .sm_count = 3}};
};

TEST_F(HopperGated, IsRightForEveryLayoutAndOption) {
  for (const DTypes& types : {kBf16, kF16}) {
    for (const ActivationKind kind :
         {ActivationKind::kSwiglu, ActivationKind::kGegluTanh, ActivationKind::kClampedSwiglu}) {
      for (const bool transposed : {false, true}) {
        Case c = gated_case(types, kind, {130, 0, 1, 257, 33, 410}, 72, 136);
        c.transpose_rhs = transposed;
        expect(c);
        c.preactivation = true;
        c.bias = Presence::kTensor;
        expect(c);
        c.row_scale = c.bias_scale = true;
        c.alpha = Scalars::kPerGroup;
        c.sizes_on_device = true;
        c.rhs_layout.form = Placement::kList;
        c.out_layout.row_padding = 8;
        expect(c);
        if (!transposed) continue;
        c.preactivation = false;
        c.rhs_layout.form = Placement::kStacked;
        c.activation.layout = GateLayout::kInterleaved;
        expect(c);
        c.group_offset = 2;
        c.num_local_groups = 3;
        expect(c);
      }
    }
  }
}

// A long sum, a column edge of 8, and columns of less than a tile.
TEST_F(HopperGated, IsRightAtTheEdges) {
  for (const int64_t columns : {8, 56, 64, 72, 128, 200}) {
    for (const int64_t k : {8, 64, 520}) {
      Case c = gated_case(kBf16, ActivationKind::kSwiglu, {64, 191, 192, 193}, k, columns);
      c.preactivation = columns % 16 == 0;
      c.transpose_rhs = k != 64;
      expect(c);
    }
  }
}

TEST_F(HopperGated, HasTheBitsOfAnActivationOfItsOwn) {
  for (const ActivationKind kind :
       {ActivationKind::kSwiglu, ActivationKind::kGegluTanh, ActivationKind::kClampedSwiglu}) {
    for (const bool bias : {false, true}) {
      Case c = gated_case(kBf16, kind, {130, 300, 0, 33}, 200, 136);
      c.transpose_rhs = true;
      c.bias = bias ? Presence::kTensor : Presence::kAbsent;
      std::vector<std::vector<std::byte>> results;
      for (const char* kernel : {kKernel, "sm90/gmm_256x128", "sm90/gmm_64x128"}) {
        c.kernel = kernel;
        verify::CaseData data = verify::make_data(c, device_memory());
        data.upload();
        const Status status = verify::call(context_, c, data);
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(device_memory().finish(context_).ok());
        data.download();
        results.push_back(data.out->all_bytes_after());
      }
      EXPECT_EQ(results[0], results[1]) << to_string(c);
      EXPECT_EQ(results[0], results[2]) << to_string(c);
    }
  }
}

TEST_F(HopperGated, RefusesWhatItCannotApply) {
  const auto refused = [&](Case c) {
    c.kernel = kKernel;
    const verify::CaseData data = verify::make_data(c, device_memory());
    std::string kernel;
    return !verify::kernel_of(context_, c, data, &kernel).ok();
  };
  const Case good = gated_case(kBf16, ActivationKind::kSwiglu, {300, 40}, 72, 136);
  EXPECT_FALSE(refused(good));
  Case c = good;
  c.activation.kind = ActivationKind::kGegluErf;
  EXPECT_TRUE(refused(c));
  c = good;
  c.activation.kind = ActivationKind::kNone;
  EXPECT_TRUE(refused(c));
  c = good;
  c.n = 2 * 132;
  EXPECT_TRUE(refused(c));
  c = good;
  c.activation.layout = GateLayout::kInterleaved;  // weights [g, k, n]
  EXPECT_TRUE(refused(c));
}

}  // namespace
}  // namespace cadre::tests
