// Rows by index: the bits of rows copied first on every instruction set, and an index that is out
// of range named before anything is written.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cpu/cpu_backend.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/reference.h"
#include "plan/context_state.h"
#include "unit/indexed_rows.h"

namespace cadre::cpu {
namespace {

class IndexedRowsOnEveryIsa : public testing::TestWithParam<Isa> {};

TEST_P(IndexedRowsOnEveryIsa, GiveTheBitsOfRowsCopiedFirst) {
  struct Types {
    DType a, b, compute;
  };
  for (const Types& types :
       {Types{DType::kF32, DType::kF32, DType::kF32},
        Types{DType::kBF16, DType::kBF16, DType::kF32},
        Types{DType::kF32, DType::kF16, DType::kF32}, Types{DType::kF64, DType::kF64, DType::kF64},
        Types{DType::kI8, DType::kI8, DType::kI32}}) {
    const GemmKernel& kernel = *find_kernel(GetParam(), types.a, types.b, types.compute);
    IndexedRows(kernel, types.a, types.b).check();
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, IndexedRowsOnEveryIsa, testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(name_of(test.param)); });

/// Seven rows of four in memory, in three groups of which the last two are here.
struct IndexedCall {
  static constexpr int64_t kM = 7, kK = 5, kN = 3, kInMemory = 4;
  std::vector<float> lhs, rhs, out;
  std::vector<int32_t> lhs_index{99, 3, 0, 1, 1, -7, 2}, rhs_index{99, 0, 2, 2, 3, 50, 1};
  plan::Problem problem;
  plan::Operands operands;

  explicit IndexedCall(plan::Op op)
      : lhs(kInMemory * kK),
        rhs(op == plan::Op::kGmm ? 2 * kK * kN : kInMemory * kN),
        out(op == plan::Op::kGmm ? kM * kN : 2 * kK * kN, -1.0f) {
    for (size_t i = 0; i < lhs.size(); ++i) lhs[i] = static_cast<float>(i % 7) - 2.5f;
    for (size_t i = 0; i < rhs.size(); ++i) rhs[i] = static_cast<float>(i % 5) - 1.5f;
    const bool gmm = op == plan::Op::kGmm;
    problem = {.op = op, .m = kM, .k = kK, .n = kN, .num_groups = 3, .num_local_groups = 2};
    problem.lhs.dtype = problem.rhs.dtype = problem.out.dtype = DType::kF32;
    problem.lhs_rows = problem.rhs_rows = {.rows = kInMemory, .index = DType::kI32};
    operands.host_offsets = {0, 1, 3, 5};
    operands.group_offset = 1;
    operands.lhs = TensorView::contiguous(lhs.data(), DType::kF32, {kInMemory, kK});
    operands.rhs = gmm ? TensorView::contiguous(rhs.data(), DType::kF32, {2, kK, kN})
                       : TensorView::contiguous(rhs.data(), DType::kF32, {kInMemory, kN});
    operands.out = gmm ? TensorView::contiguous(out.data(), DType::kF32, {kM, kN})
                       : TensorView::contiguous(out.data(), DType::kF32, {2, kK, kN});
    operands.epilogue.c = operands.out;
    operands.lhs_index = TensorView::contiguous(lhs_index.data(), DType::kI32, {kM});
    if (!gmm) operands.rhs_index = TensorView::contiguous(rhs_index.data(), DType::kI32, {kM});
  }

  float lhs_at(int64_t row, int64_t p) const {
    return lhs[static_cast<size_t>(lhs_index[static_cast<size_t>(row)] * kK + p)];
  }

  std::vector<float> expected_gmm() const {
    std::vector<float> sums(kM * kN, 0.0f);
    for (int64_t row = 1; row < 5; ++row)
      for (int64_t j = 0; j < kN; ++j)
        for (int64_t p = 0; p < kK; ++p)
          sums[static_cast<size_t>(row * kN + j)] +=
              lhs_at(row, p) * rhs[static_cast<size_t>(((row - 1) / 2 * kK + p) * kN + j)];
    return sums;
  }

  std::vector<float> expected_tgmm() const {
    std::vector<float> sums(2 * kK * kN, 0.0f);
    for (int64_t row = 1; row < 5; ++row)
      for (int64_t p = 0; p < kK; ++p)
        for (int64_t j = 0; j < kN; ++j)
          sums[static_cast<size_t>(((row - 1) / 2 * kK + p) * kN + j)] +=
              lhs_at(row, p) *
              rhs[static_cast<size_t>(rhs_index[static_cast<size_t>(row)] * kN + j)];
    return sums;
  }

  Status run(const plan::Backend& backend) {
    detail::ContextState context;
    plan::Config config;
    Status status = backend.choose(context, problem, nullptr, &config);
    return status.ok() ? backend.run(context, problem, config, operands, {}) : status;
  }
};

void expect_results(const plan::Backend& backend) {
  IndexedCall gmm(plan::Op::kGmm);
  ASSERT_TRUE(gmm.run(backend).ok());
  EXPECT_EQ(gmm.out, gmm.expected_gmm()) << backend.name();
  IndexedCall tgmm(plan::Op::kTgmm);
  ASSERT_TRUE(tgmm.run(backend).ok());
  EXPECT_EQ(tgmm.out, tgmm.expected_tgmm()) << backend.name();
}

/// Indices of tail and foreign rows are never read.
TEST(IndexedRows, CoveredRowsAloneAreRead) {
  expect_results(*make_cpu_backend());
  expect_results(*make_reference_backend());
}

}  // namespace
}  // namespace cadre::cpu
