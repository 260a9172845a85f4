// What the contract's cases leave out of grouped_gemm on Hopper: many tiles in every order of the
// operands, calls whose matrices only the device sees, and the bits of a group.
#include "tests/contract/contract.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/hopper_subjects.h"
#include "verify/case_call.h"

namespace cadre::tests {
namespace {

using contract::DTypes;
using verify::Case;
using verify::COperand;
using verify::Scalars;

constexpr DTypes kBf16{DType::kBF16, DType::kBF16, DType::kBF16};
constexpr DTypes kF16InF32{DType::kF16, DType::kF16, DType::kF32};

Case of_dims(const DTypes& types, std::vector<verify::GemmDims> dims) {
  Case c = contract::grouped_gemm::basic(types);
  c.dims = std::move(dims);
  return c;
}

class HopperGrouped : public HopperTest, public testing::WithParamInterface<std::string> {
 protected:
  void expect(const Case& c) {
    for (const std::string& failure : verify::check_case(subject_.subject(), c)) {
      ADD_FAILURE() << to_string(c) << ": " << failure;
    }
  }

  void expect_in_every_order(Case c) {
    for (const bool lhs : {false, true}) {
      for (const bool rhs : {false, true}) {
        c.transpose_lhs = lhs;
        c.transpose_rhs = rhs;
        expect(c);
      }
    }
  }

  BackendUnderTest subject_{GetParam()};
};

TEST_P(HopperGrouped, ManyTilesInEveryOrder) {
  for (const DTypes& types : {kBf16, kF16InF32}) {
    Case c = of_dims(
        types,
        {{520, 136, 456}, {8, 1032, 200}, {0, 64, 64}, {136, 0, 72}, {264, 64, 1160}, {1, 8, 8}});
    expect_in_every_order(c);
    c.accumulate = true;
    expect_in_every_order(c);
    c.accumulate = false;
    c.alpha = c.beta = Scalars::kPerGroup;
    c.c = COperand::kSeparate;
    c.sizes_on_device = true;
    expect_in_every_order(c);
  }
}

TEST_P(HopperGrouped, EqualGroupsOfOneTensor) {
  Case c = of_dims(kBf16, {{200, 328, 392}, {200, 328, 392}, {200, 328, 392}});
  for (verify::Layout* layout : {&c.lhs_layout, &c.rhs_layout, &c.out_layout}) {
    *layout = {.form = Placement::kStacked};
  }
  expect_in_every_order(c);
}

// One matrix that the copy engine can't take, seen by the device alone: the portable kernel
// computes the whole call.
TEST_P(HopperGrouped, OneOddMatrixAmongMany) {
  for (const bool accumulate : {false, true}) {
    Case c = of_dims(kBf16, {{72, 40, 136}, {16, 24, 9}, {136, 264, 64}});
    c.accumulate = accumulate;
    c.sizes_on_device = true;
    expect_in_every_order(c);
    c.dims[1] = {16, 24, 16};
    c.lhs_layout.gap_elements = 5;
    c.rhs_layout.gap_elements = 3;
    expect_in_every_order(c);
  }
}

TEST_P(HopperGrouped, FourThousandGroups) {
  Case c = of_dims(kBf16, {});
  for (int64_t i = 0; i < 4096; ++i) c.dims.push_back({i % 5 == 0 ? 8 * (i % 37) : 0, 16, 24});
  expect(c);
  c.accumulate = true;
  expect(c);
}

INSTANTIATE_TEST_SUITE_P(All, HopperGrouped, testing::ValuesIn(restricted_names("grouped_gemm")),
                         backend_of);

class HopperGroupedBits : public HopperTest {
 protected:
  static constexpr int64_t kGroups = 3, kM = 200, kK = 328, kN = 264;

  static void run(Context& context, const GpuArray& a, const GpuArray& b, GpuArray& d,
                  bool transb) {
    GroupedGemmArgs call;
    call.a = GroupedTensor(a.view());
    call.b = GroupedTensor(b.view());
    call.d = GroupedTensor(d.view());
    call.transb = transb;
    const Status status = grouped_gemm(context, call);
    EXPECT_TRUE(status.ok()) << status.message();
    d.download();
  }
};

// One accumulator and ascending k, as in every kernel: the tile's shape decides no bit.
TEST_F(HopperGroupedBits, AreThoseOfThePortableKernel) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const bool transb : {false, true}) {
      GpuArray a(type, {kGroups, kM, kK});
      GpuArray b(type, transb ? std::vector<int64_t>{kGroups, kN, kK}
                              : std::vector<int64_t>{kGroups, kK, kN});
      GpuArray expected(type, {kGroups, kM, kN});
      GpuArray got(type, {kGroups, kM, kN});
      a.fill_random(1);
      b.fill_random(2);
      Context hopper{BackendUnderTest::options_for("cuda")};
      Context portable = portable_context();
      run(portable, a, b, expected, transb);
      run(hopper, a, b, got, transb);
      EXPECT_TRUE(got.same_after(expected)) << name_of(type) << " " << transb;
      EXPECT_FALSE(got.unchanged());
    }
  }
}

}  // namespace
}  // namespace cadre::tests
