// What the contract's cases, fitted to the Hopper kernels, leave out: which kernel a call gets,
// what is refused, lists with unaligned matrices, many groups, and products of many tiles.
#include <numeric>
#include <set>

#include "backend/registry.h"
#include "core/text.h"
#include "ops/gmm_grad.h"
#include "tests/contract/contract.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/hopper_subjects.h"
#include "verify/case_call.h"

namespace cadre::tests {
namespace {

using contract::DTypes;
using verify::Case;
using verify::COperand;
using verify::Presence;
using verify::Scalars;

constexpr DTypes kBf16{DType::kBF16, DType::kBF16, DType::kBF16};
constexpr DTypes kF16InF32{DType::kF16, DType::kF16, DType::kF32};

Case sized(Case c, std::vector<int64_t> sizes, int64_t k, int64_t n) {
  c.m = std::accumulate(sizes.begin(), sizes.end(), int64_t{7});
  c.group_sizes = std::move(sizes);
  c.k = k;
  c.n = n;
  return c;
}

// Without those that hopper_fp8_test.cc looks after: gmm's of FP8 alone, and its results by rows.
std::set<std::string> hopper_kernels() {
  std::set<std::string> names;
  for (const std::string& kernel : backend::Registry::instance().find("cuda")->kernels()) {
    const bool promoted = kernel.starts_with("sm90/gmm") && kernel.ends_with("_promoted");
    const bool fp8 = promoted || kernel.ends_with("_blocks");
    if (kernel.starts_with("sm90/") && !fp8) names.insert(kernel);
  }
  return names;
}

/// What a layer may have between its two products, one for each form that kernels know.
std::vector<Activation> forms_of_activations() {
  return {{.kind = ActivationKind::kSwiglu},
          {.kind = ActivationKind::kSwiglu, .layout = GateLayout::kInterleaved},
          {.kind = ActivationKind::kRelu2}};
}

// Needs no GPU: a kernel that comes without a subject fails where it is built.
TEST(HopperSubjects, EveryKernelOfGmmIsPinnedByOne) {
  std::set<std::string> pinned;
  for (const HopperSubject& subject : hopper_subjects()) {
    if (!subject.kernel.empty()) pinned.insert(subject.kernel);
  }
  std::set<std::string> kernels = hopper_kernels();
  EXPECT_FALSE(kernels.empty());
  std::erase_if(kernels, [](const std::string& name) {
    // hopper_activated_test.cc and hopper_gradient_test.cc
    const bool activated =
        name.ends_with("_gated") || name.ends_with("_interleaved") || name.ends_with("_activated");
    return !name.starts_with("sm90/gmm") || activated;
  });
  EXPECT_EQ(pinned, kernels);
}

class HopperChoice : public HopperTest {
 protected:
  std::string kernel_of(const Case& c) {
    const verify::CaseData data = verify::make_data(c, device_memory());
    std::string kernel;
    const Status status = verify::kernel_of(context, c, data, &kernel);
    EXPECT_TRUE(status.ok()) << status.message();
    return kernel;
  }

  /// Of the product in a layer's backward pass that makes this activation's gradient, too.
  std::string kernel_of_gradient(const Activation& activation) {
    constexpr int64_t kRows = 40, kDepth = 64, kColumns = 136;
    const auto rows = [](int64_t columns) { return GpuArray(DType::kBF16, {kRows, columns}); };
    const GpuArray dy = rows(kDepth), preact = rows(kColumns * activation.columns()),
                   out = rows(kColumns), w2(DType::kBF16, {1, kColumns, kDepth}),
                   sizes(DType::kI32, {1});
    plan::Problem problem;
    Status status = ops::problem_of({.product = {.lhs = dy.view(),
                                                 .rhs = w2.view(),
                                                 .group_sizes = sizes.sizes(),
                                                 .out = out.view(),
                                                 .transpose_rhs = true},
                                     .preact = preact.view(),
                                     .activation = activation,
                                     .activated = out.view()},
                                    &problem);
    EXPECT_TRUE(status.ok()) << status.message();
    backend::Selection selection;
    status = backend::Registry::instance().select(context.state(), problem, nullptr, &selection);
    EXPECT_TRUE(status.ok()) << status.message();
    return std::string(selection.config.kernel);
  }

  Context context{BackendUnderTest::options_for("cuda")};
};

TEST_F(HopperChoice, EveryKernelIsChosenForSomeCall) {
  std::set<std::string> chosen;
  for (const DTypes& types : {kBf16, kF16InF32}) {
    for (const bool accumulate : {false, true}) {
      for (const int64_t rows : {5, 250, 400}) {
        for (const int64_t k : {64, 4096}) {
          Case c = sized(contract::gmm::basic(types), {rows, rows}, k, 8);
          c.accumulate = accumulate;
          chosen.insert(kernel_of(c));
        }
      }
      Case c = sized(contract::tgmm::basic(types), {30, 0, 5}, 64, 72);
      c.accumulate = accumulate;
      chosen.insert(kernel_of(c));
      c = contract::grouped_gemm::basic(types);
      c.dims = {{40, 64, 72}, {8, 16, 8}};
      c.accumulate = accumulate;
      chosen.insert(kernel_of(c));
    }
  }
  for (const Activation& activation : forms_of_activations()) {
    Case c = sized(contract::gmm::basic(kBf16), {250, 250}, 64, 144);
    c.activation = activation;
    chosen.insert(kernel_of(c));
    chosen.insert(kernel_of_gradient(activation));
  }
  for (const ScaleMode mode : {ScaleMode::kTensor, ScaleMode::kBlock128}) {
    constexpr DTypes kFp8{DType::kE4M3, DType::kE4M3, DType::kBF16};
    Case c = sized(contract::tgmm::basic(kFp8), {70, 0, 260}, 136, 200);
    c.lhs_mode = c.rhs_mode = mode;
    c.tensor_copies = true;  // weight gradients are made of column-wise copies
    chosen.insert(kernel_of(c));
  }
  EXPECT_EQ(chosen, hopper_kernels());
}

TEST_F(HopperChoice, UnalignedOperandsRunOnPortableKernels) {
  const Case aligned = sized(contract::gmm::basic(kBf16), {300, 40}, 72, 136);
  EXPECT_TRUE(kernel_of(aligned).starts_with("sm90/"));
  Case c = aligned;
  c.lhs_layout.row_padding = 4;
  EXPECT_TRUE(kernel_of(c).starts_with("sm80/"));
  c = aligned;
  c.out_layout.offset_elements = 4;
  EXPECT_TRUE(kernel_of(c).starts_with("sm80/"));
  c = aligned;
  c.rhs_layout = {.form = Placement::kList, .gap_elements = 4};
  EXPECT_TRUE(kernel_of(c).starts_with("sm80/"));
  c.sizes_on_device = true;  // the list can't be read: whoever finds it unaligned there steps back
  EXPECT_TRUE(kernel_of(c).starts_with("sm90/"));
}

TEST_F(HopperChoice, APinnedKernelRefusesWhatItCannotWrite) {
  const BackendUnderTest backend("cuda");
  for (const HopperSubject& subject : hopper_subjects()) {
    Case c = sized(contract::gmm::basic(subject.c ? kF16InF32 : kBf16), {300, 40}, 72, 136);
    c.kernel = subject.kernel;
    c.accumulate = !subject.c;
    const std::vector<std::string> found = verify::check_case(backend.subject(), c);
    if (subject.c && subject.f32_out) {
      expect_none(found);
    } else {
      ASSERT_EQ(found.size(), 1u);
      EXPECT_NE(found[0].find("writes no such output"), std::string::npos) << found[0];
    }
  }
}

/// A Hopper subject, with cases that fit it as they are.
class HopperCases : public HopperTest, public testing::WithParamInterface<std::string> {
 protected:
  void expect(const Case& c) { expect_on(subject_.subject(), c); }

  static void expect_on(const verify::Subject& subject, Case c) {
    if (c.has_beta() && !hopper().c) return;
    c.kernel = c.op == verify::Op::kGmm ? hopper().kernel : "";
    if (hopper().fit == HopperFit::kRagged) c.sizes_on_device = true;
    for (const std::string& failure : verify::check_case(subject, c)) {
      ADD_FAILURE() << to_string(c) << ": " << failure;
    }
  }

  static const HopperSubject& hopper() { return *find_hopper_subject(GetParam()); }
  static DTypes types() { return hopper().f32_out ? kF16InF32 : kBf16; }

  BackendUnderTest subject_{GetParam()};
};

TEST_P(HopperCases, ListsOnTheDeviceMayBeUnaligned) {
  for (const DTypes& each : {kBf16, types()}) {
    for (const int64_t gap : {8, 5}) {
      Case c = sized(contract::gmm::basic(each), {130, 0, 257, 33}, 72, 136);
      c.sizes_on_device = true;
      Case weights = c;
      weights.rhs_layout = {.form = Placement::kList, .gap_elements = gap};
      expect(weights);
      Case results = c;
      results.transpose_rhs = true;
      results.out_layout = {.form = Placement::kList, .gap_elements = gap};
      expect(results);
      results.accumulate = true;
      expect(results);
      results.c = COperand::kSeparate;
      results.c_layout = {.form = Placement::kList, .gap_elements = 13 - gap};
      expect(results);
    }
  }
}

TEST_P(HopperCases, EveryOptionAtOnce) {
  for (const bool transposed : {false, true}) {
    for (const COperand where : {COperand::kAbsent, COperand::kSeparate}) {
      Case c = sized(contract::gmm::basic(types()), {300, 0, 129, 1, 500, 64}, 200, 264);
      c.transpose_rhs = transposed;
      c.alpha = Scalars::kPerGroup;
      c.bias = Presence::kList;
      c.bias_scale = c.row_scale = true;
      c.group_offset = 1;
      c.num_local_groups = 4;
      expect(c);
      c.c = where;
      c.beta = Scalars::kPerGroup;
      expect(c);
    }
  }
}

// Factors are handed back before the tiles without products that follow are waited for.
TEST_P(HopperCases, ManyZeroTilesAroundFactors) {
  Case c = sized(contract::gmm::basic(types()), {2100, 300, 40, 2200}, 72, 264);
  c.group_offset = 1;
  c.num_local_groups = 2;
  c.bias = Presence::kTensor;
  c.row_scale = true;
  expect(c);
  c.accumulate = true;
  expect(c);
}

TEST_P(HopperCases, FourThousandGroups) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < 4096; ++i) sizes.push_back(i % 5 == 0 ? i % 37 : 0);
  Case c = sized(contract::gmm::basic(types()), sizes, 16, 24);
  expect(c);
  c.num_local_groups = 1000;
  c.group_offset = 3000;
  expect(c);
}

TEST_P(HopperCases, GroupsOfManyBands) {
  Case c = sized(contract::gmm::basic(types()), {40, 4500, 3}, 40, 264);
  expect(c);
  c.transpose_rhs = true;
  c.accumulate = true;
  expect(c);
}

TEST_P(HopperCases, FewTilesForTheLastWave) {
  ContextOptions options = BackendUnderTest::options_for(GetParam());
  options.sm_count = 10;
  Context context(options);
  const verify::Subject on_ten{context, device_memory(), "sm90/"};
  Case c = sized(contract::gmm::basic(types()), {900, 40, 1000, 1100}, 72, 320);
  expect_on(on_ten, c);
  c.transpose_rhs = true;
  c.accumulate = true;
  expect_on(on_ten, c);
}

INSTANTIATE_TEST_SUITE_P(All, HopperCases, testing::ValuesIn(restricted_names("gmm")), backend_of);

class HopperTgmmCases : public HopperCases {};

TEST_P(HopperTgmmCases, ListsOnTheDeviceMayBeUnaligned) {
  for (const DTypes& each : {kBf16, kF16InF32}) {
    for (const int64_t gap : {8, 5}) {
      Case c = sized(contract::tgmm::basic(each), {130, 0, 257, 33}, 136, 200);
      c.sizes_on_device = true;
      c.out_layout = {.form = Placement::kList, .gap_elements = gap};
      expect(c);
      c.accumulate = true;
      expect(c);
      c.c = COperand::kSeparate;
      c.c_layout = {.form = Placement::kList, .gap_elements = 13 - gap};
      expect(c);
    }
  }
}

TEST_P(HopperTgmmCases, ManyTiles) {
  for (const bool accumulate : {false, true}) {
    Case c = sized(contract::tgmm::basic(kF16InF32), {100, 0, 72, 128}, 264, 776);
    c.accumulate = accumulate;
    expect(c);
    c = sized(contract::tgmm::basic(kBf16), {65, 257, 1}, 2056, 200);
    c.accumulate = accumulate;
    c.alpha = Scalars::kPerGroup;
    expect(c);
  }
}

TEST_P(HopperTgmmCases, FourThousandGroups) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < 4096; ++i) sizes.push_back(i % 5 == 0 ? i % 37 : 0);
  Case c = sized(contract::tgmm::basic(kBf16), sizes, 8, 16);
  expect(c);
  c.accumulate = true;
  c.num_local_groups = 1000;
  c.group_offset = 3000;
  expect(c);
}

TEST_P(HopperTgmmCases, ColumnsBelow16Bytes) {
  for (const int64_t n : {3, 325}) {
    Case c = sized(contract::tgmm::basic(kBf16), {50, 37, 0, 63}, 200, n);
    c.rhs_layout.row_padding = 8 - n % 8;
    c.out_layout.row_padding = c.out_layout.gap_elements = 8 - n % 8;
    expect(c);
    c.accumulate = true;
    expect(c);
  }
}

INSTANTIATE_TEST_SUITE_P(All, HopperTgmmCases, testing::ValuesIn(restricted_names("tgmm")),
                         backend_of);

}  // namespace
}  // namespace cadre::tests
