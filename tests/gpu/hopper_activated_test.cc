// The Hopper kernels that apply an activation: right for every function, layout and option, and
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

constexpr DTypes kBf16{DType::kBF16, DType::kBF16, DType::kBF16};
constexpr DTypes kF16{DType::kF16, DType::kF16, DType::kF16};

constexpr GateLayout kHalves = GateLayout::kConcatenated;
constexpr GateLayout kPairs = GateLayout::kInterleaved;

/// What is activated, and the kernel that does it.
struct Form {
  const char* kernel;
  GateLayout layout;
  std::vector<ActivationKind> kinds;
};
const std::vector<ActivationKind> kGatedKinds = {
    ActivationKind::kSwiglu, ActivationKind::kGegluTanh, ActivationKind::kGegluErf,
    ActivationKind::kClampedSwiglu};
const std::vector<Form>& forms() {
  static const std::vector<Form> all = {{"sm90/gmm_192x64_gated", kHalves, kGatedKinds},
                                        {"sm90/gmm_192x64_interleaved", kPairs, kGatedKinds},
                                        {"sm90/gmm_192x128_activated",
                                         kHalves,
                                         {ActivationKind::kSilu, ActivationKind::kGeluTanh,
                                          ActivationKind::kGeluErf, ActivationKind::kRelu2}}};
  return all;
}

/// All but erf of concatenated gates in weights [g, k, n].
bool takes(const Form& form, ActivationKind kind, bool transposed) {
  return transposed || kind != ActivationKind::kGegluErf || form.layout == kPairs;
}

/// `columns` of the result.
Case activated_case(const DTypes& types, const Form& form, ActivationKind kind,
                    std::vector<int64_t> sizes, int64_t k, int64_t columns) {
  Case c = contract::gmm::basic(types);
  c.m = std::accumulate(sizes.begin(), sizes.end(), int64_t{70});
  c.group_sizes = std::move(sizes);
  c.k = k;
  c.activation = {.kind = kind, .layout = form.layout, .limit = 0.75};
  c.n = c.activation.columns() * columns;
  c.kernel = form.kernel;
  return c;
}

class HopperActivated : public HopperTest {
 protected:
  void expect(const Case& c) {
    const verify::Subject subject{
        .context = context_, .memory = device_memory(), .kernels = c.kernel};
    for (const std::string& failure : verify::check_case(subject, c)) {
      ADD_FAILURE() << to_string(c) << ": " << failure;
    }
  }

  void expect_every_option(const DTypes& types, const Form& form, ActivationKind kind) {
    for (const bool transposed : {false, true}) {
      if (!takes(form, kind, transposed)) continue;
      Case c = activated_case(types, form, kind, {130, 0, 1, 257, 33, 410}, 72, 136);
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
      c.preactivation = false;
      c.rhs_layout.form = Placement::kStacked;
      c.group_offset = 2;
      c.num_local_groups = 3;
      expect(c);
    }
  }

  // Few multiprocessors: a CTA takes many tiles, and its warpgroups take turns.
  Context context_{ContextOptions{.backend = "cuda", .sm_count = 3}};
};

TEST_F(HopperActivated, IsRightWithConcatenatedGates) {
  for (const DTypes& types : {kBf16, kF16}) {
    for (const ActivationKind kind : forms()[0].kinds) expect_every_option(types, forms()[0], kind);
  }
}

TEST_F(HopperActivated, IsRightWithInterleavedGates) {
  for (const DTypes& types : {kBf16, kF16}) {
    for (const ActivationKind kind : forms()[1].kinds) expect_every_option(types, forms()[1], kind);
  }
}

TEST_F(HopperActivated, IsRightWithoutAGate) {
  for (const DTypes& types : {kBf16, kF16}) {
    for (const ActivationKind kind : forms()[2].kinds) expect_every_option(types, forms()[2], kind);
  }
}

// A long sum, a column edge of 8, and columns of less than a tile.
TEST_F(HopperActivated, IsRightAtTheEdges) {
  for (const Form& form : forms()) {
    for (const int64_t columns : {8, 24, 56, 64, 72, 128, 200}) {
      for (const int64_t k : {8, 64, 520}) {
        Case c = activated_case(kBf16, form, form.kinds[0], {64, 191, 192, 193}, k, columns);
        c.preactivation = columns % 16 == 0;
        c.transpose_rhs = k != 64;
        expect(c);
      }
    }
  }
}

TEST_F(HopperActivated, HasTheBitsOfAnActivationOfItsOwn) {
  for (const Form& form : forms()) {
    for (const ActivationKind kind : form.kinds) {
      for (const bool transposed : {false, true}) {
        if (!takes(form, kind, transposed)) continue;
        Case c = activated_case(kBf16, form, kind, {130, 300, 0, 33}, 200, 136);
        c.transpose_rhs = transposed;
        c.bias = transposed ? Presence::kTensor : Presence::kAbsent;
        std::vector<std::vector<std::byte>> results;
        for (const char* kernel : {form.kernel, "sm90/gmm_256x128", "sm90/gmm_64x128"}) {
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
}

TEST_F(HopperActivated, RefusesWhatItCannotApply) {
  const auto refused = [&](const Case& c) {
    const verify::CaseData data = verify::make_data(c, device_memory());
    std::string kernel;
    return !verify::kernel_of(context_, c, data, &kernel).ok();
  };
  for (const Form& form : forms()) {
    for (const ActivationKind kind : form.kinds) {
      for (const bool transposed : {false, true}) {
        Case c = activated_case(kBf16, form, kind, {300, 40}, 72, 136);
        c.transpose_rhs = transposed;
        EXPECT_EQ(refused(c), !takes(form, kind, transposed)) << to_string(c);
      }
    }
    const Case good = activated_case(kBf16, form, form.kinds[0], {300, 40}, 72, 136);
    EXPECT_FALSE(refused(good)) << form.kernel;
    Case c = good;
    c.activation = {};
    EXPECT_TRUE(refused(c)) << form.kernel;
    c = good;
    c.n -= 4 * c.activation.columns();
    EXPECT_TRUE(refused(c)) << form.kernel;
    for (const Form& other : forms()) {
      c = activated_case(kBf16, other, other.kinds[0], {300, 40}, 72, 136);
      c.kernel = form.kernel;
      EXPECT_EQ(refused(c), form.kernel != other.kernel) << form.kernel << ", " << other.kernel;
    }
  }
}

}  // namespace
}  // namespace cadre::tests
