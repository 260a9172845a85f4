// FP8 on Hopper: gmm in every mode of scales that its kernels take, every pair of types, every
// option of the epilogue, and at the edges of tiles and groups. A failure says where the wrong
// elements lie.
#include <algorithm>
#include <set>

#include "backend/registry.h"
#include "ops/problem_of.h"
#include "tests/gpu/fp8_product.h"

namespace cadre::tests {
namespace {

class HopperFp8 : public HopperTest {
 protected:
  static void expect(const Fp8Case& c, int64_t every_row = 1) {
    SCOPED_TRACE(c.name());
    ContextOptions options{.backend = "cuda"};
    options.sm_count = c.sm_count;
    Context context(options);
    Fp8Operands operands(c);
    const GmmArgs args = operands.args();
    const Status status = gmm(context, args);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    const Status check = context.check(kGpu);
    ASSERT_TRUE(check.ok()) << check.message();
    operands.out().download();
    EXPECT_TRUE(operands.out().guards_intact());
    EXPECT_TRUE(operands.padding_intact());
    WrongElements wrong;
    int64_t first = c.first_row();
    for (int64_t group = 0; group < c.groups(); ++group) {
      const int64_t rows = c.rows_of(group);
      for (int64_t row = 0; row < rows; ++row) {
        if (row % every_row != 0 && row != rows - 1) continue;
        for (int64_t col = 0; col < c.n; ++col) {
          const verify::Expected expected = operands.expected(group, first + row, col);
          const double got = operands.got(first + row, col);
          if (verify::agrees(c.out, expected, got)) continue;
          wrong.add(group, row, col, got, expected, verify::severity(c.out, expected, got));
        }
      }
      first += rows;
    }
    for (int64_t row = 0; row < c.m(); ++row) {
      if (row >= c.first_row() && row < c.end_row()) continue;
      for (int64_t col = 0; col < c.n; ++col) {
        const double kept = c.accumulate ? operands.had(row, col) : 0;
        const double got = operands.got(row, col);
        if (got != kept) wrong.add(c.groups(), row, col, got, {.value = kept}, HUGE_VAL);
      }
    }
    EXPECT_FALSE(wrong.any()) << wrong.message(c.m() * c.n);
  }

  static std::string kernel_of(Context& context, const GmmArgs& args) {
    plan::Problem problem;
    Status status = ops::problem_of(args, &problem);
    EXPECT_TRUE(status.ok()) << status.message();
    backend::Selection selection;
    status = backend::Registry::instance().select(context.state(), problem, nullptr, &selection);
    EXPECT_TRUE(status.ok()) << status.message();
    return std::string(selection.config.kernel);
  }

  // The first row of a product of any codes, the same in every case of one k, n and modes.
  static std::vector<double> first_row_of(const Fp8Case& c) {
    Context context(ContextOptions{.backend = "cuda", .sm_count = 3});
    Fp8Operands operands(c, 7);
    verify::Random random(3);
    for (int64_t i = 0; i < operands.stride(); ++i) {
      operands.lhs().store(i, random.uniform(-300, 300));
    }
    operands.lhs().upload();
    verify::Random weights(5);
    for (int64_t i = 0; i < c.n * operands.stride(); ++i) {
      operands.rhs().store(i, weights.uniform(-300, 300));
    }
    operands.rhs().upload();
    GmmArgs args = operands.args();
    // Scales of the first row and group that don't depend on the number of rows.
    GpuArray ones(DType::kF32, {c.m() * 8});
    GpuArray more(DType::kF32, {c.groups() * c.n * 8});
    verify::Random scales(9);
    for (int64_t i = 0; i < ones.count(); ++i) ones.store(i, scales.uniform(0.5, 2));
    for (int64_t i = 0; i < more.count(); ++i) more.store(i, scales.uniform(0.5, 2));
    for (int64_t i = 0; i < 8; ++i) ones.store(i, 0.5 + 0.1 * static_cast<double>(i));
    for (int64_t i = 0; i < c.n * 8; ++i) more.store(i, 0.7 + 0.001 * static_cast<double>(i));
    ones.upload();
    more.upload();
    args.lhs.scales.values.data = ones.data();
    args.rhs.scales.values.data = more.data();
    const Status status = gmm(context, args);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    operands.out().download();
    std::vector<double> row;
    for (int64_t col = 0; col < c.n; ++col) row.push_back(operands.got(0, col));
    EXPECT_TRUE(std::none_of(row.begin(), row.end(), [](double v) { return std::isnan(v); }));
    return row;
  }

  // Every case of `form` with these sizes, among few rows a group and many, has one first row.
  static void expect_one_first_row(const Fp8Case& form,
                                   const std::vector<std::vector<int64_t>>& all_sizes) {
    SCOPED_TRACE(form.name());
    std::vector<double> alone;
    for (const std::vector<int64_t>& sizes : all_sizes) {
      for (const int64_t average_rows : {16, 1000}) {
        if (form.fast && average_rows < 1000) continue;  // other sums, by the caller's leave
        Fp8Case c = form;
        c.sizes = sizes;
        c.average_rows = average_rows;
        const std::vector<double> row = first_row_of(c);
        if (alone.empty()) alone = row;
        ASSERT_EQ(row, alone) << sizes[0] << " rows, average " << average_rows;
      }
    }
  }

  static std::vector<Fp8Case> modes(const Fp8Case& of) {
    std::vector<Fp8Case> all;
    const auto add = [&](ScaleMode lhs, ScaleMode rhs, bool fast) {
      all.push_back(of);
      all.back().lhs_mode = lhs;
      all.back().rhs_mode = rhs;
      all.back().fast = fast;
    };
    add(ScaleMode::kBlock128, ScaleMode::kBlock128, false);
    for (const bool fast : {false, true}) {
      add(ScaleMode::kTensor, ScaleMode::kTensor, fast);
      add(ScaleMode::kRow, ScaleMode::kRow, fast);
    }
    add(ScaleMode::kRow, ScaleMode::kTensor, false);
    add(ScaleMode::kTensor, ScaleMode::kRow, false);
    return all;
  }
};

TEST_F(HopperFp8, EveryKernelIsChosenForSomeCall) {
  Context context(ContextOptions{.backend = "cuda"});
  std::set<std::string> chosen;
  for (const auto& [rows, n] : {std::pair{5, 8}, {250, 8}, {250, 3}}) {
    for (const Fp8Case& c : modes({.sizes = {rows}, .k = 64, .n = n})) {
      const Fp8Operands operands(c);
      chosen.insert(kernel_of(context, operands.args()));
    }
  }
  std::set<std::string> kernels = {"sm90/gmm_192x128"};  // with fast_accumulation
  for (const std::string& kernel : backend::Registry::instance().find("cuda")->kernels()) {
    const bool of_gmm = kernel.starts_with("sm90/gmm_") && kernel.ends_with("_promoted");
    if (of_gmm || kernel.ends_with("_blocks")) kernels.insert(kernel);
  }
  EXPECT_EQ(kernels.size(), 6u);
  EXPECT_EQ(chosen, kernels);
}

TEST_F(HopperFp8, EveryModeInOneTile) {
  for (const Fp8Case& c : modes({.sizes = {100}, .k = 256, .n = 128})) expect(c);
}

TEST_F(HopperFp8, EveryModeInManyTiles) {
  for (Fp8Case c :
       modes({.sizes = {130, 0, 1, 257, 33, 410, 64}, .k = 400, .n = 264, .tail = 70})) {
    c.sm_count = 3;
    expect(c);
  }
}

TEST_F(HopperFp8, EveryTypeAndResult) {
  for (const auto& [lhs, rhs] :
       {std::pair{DType::kE4M3, DType::kE4M3}, std::pair{DType::kE4M3, DType::kE5M2},
        std::pair{DType::kE5M2, DType::kE4M3}}) {
    for (const DType out : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (Fp8Case c : modes({.sizes = {70, 200}, .k = 272, .n = 136})) {
        c.lhs = lhs;
        c.rhs = rhs;
        c.out = out;
        c.sm_count = 2;
        expect(c);
        c.average_rows = 16;  // the narrow tiles
        expect(c);
      }
    }
  }
}

TEST_F(HopperFp8, EveryOptionOfTheEpilogue) {
  for (const DType out : {DType::kBF16, DType::kF32}) {
    for (const bool accumulate : {false, true}) {
      for (Fp8Case c : modes({.sizes = {130, 0, 1, 257, 33}, .k = 272, .n = 200, .tail = 40})) {
        c.out = out;
        c.options = true;
        c.accumulate = accumulate;
        c.sm_count = 2;
        expect(c);
        c.options = false;
        c.average_rows = 16;
        expect(c);
      }
    }
  }
}

TEST_F(HopperFp8, EdgesOfGroupsAndColumns) {
  for (Fp8Case c : modes({.sizes = {0, 1, 127, 128, 129, 0, 15, 16, 17, 191, 192, 193, 385}})) {
    for (const auto& [k, n] : {std::pair{1, 8}, std::pair{17, 24}, std::pair{127, 3},
                               std::pair{129, 130}, std::pair{512, 61}}) {
      c.k = k;
      c.n = n;
      c.sm_count = 4;
      expect(c);
    }
  }
}

TEST_F(HopperFp8, LargeExtents) {
  for (const auto& [k, n] : {std::pair{2880, 768}, std::pair{272, 2880}}) {
    for (const Fp8Case& c : modes({.sizes = {129, 260}, .k = k, .n = n})) expect(c, 37);
  }
}

TEST_F(HopperFp8, ScalesOfEveryKindAndOrder) {
  for (const DType scales : {DType::kF32, DType::kE8M0}) {
    for (const bool rows : {false, true}) {
      Fp8Case c{.sizes = {33, 200, 5}, .k = 1000, .n = 300};
      c.scales = scales;
      c.rows_of_scales = rows;
      expect(c);
      c.average_rows = 16;
      expect(c);
    }
  }
  Fp8Case one{.sizes = {33, 200, 5}, .k = 300, .n = 300};
  one.lhs_mode = one.rhs_mode = ScaleMode::kTensor;
  one.one_scale = true;
  expect(one);
}

TEST_F(HopperFp8, NarrowTilesOfManyGroups) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < 70; ++i) sizes.push_back(i * 7 % 23);
  for (Fp8Case c : modes({.sizes = sizes, .k = 144, .n = 136})) {
    expect(c);
    c.options = true;
    c.sm_count = 5;
    expect(c);
  }
}

// A NaN stays in its row, or in its column of its group.
TEST_F(HopperFp8, NansStayWhereTheyAre) {
  for (const Fp8Case& c : modes({.sizes = {100, 60, 200}, .k = 272, .n = 136, .tail = 5})) {
    SCOPED_TRACE(c.name());
    constexpr int64_t kRow = 130;  // of group 1
    constexpr int64_t kCol = 77;   // of group 2
    Context context(ContextOptions{.backend = "cuda", .sm_count = 2});
    Fp8Operands operands(c);
    operands.lhs().store(kRow * operands.stride() + 200, NAN);
    operands.lhs().upload();
    operands.rhs().store((2 * c.n + kCol) * operands.stride() + 3, NAN);
    operands.rhs().upload();
    const Status status = gmm(context, operands.args());
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    operands.out().download();
    for (int64_t row = 0; row < c.m(); ++row) {
      for (int64_t col = 0; col < c.n; ++col) {
        const bool nan = row == kRow || (row >= 160 && row < 360 && col == kCol);
        ASSERT_EQ(std::isnan(operands.got(row, col)), nan) << row << ", " << col;
      }
    }
  }
}

// A row has the same bits beside any others, in tiles of any width and in wide and narrow shapes.
TEST_F(HopperFp8, ARowsBitsDependOnTheRowAlone) {
  for (Fp8Case form : modes({.sizes = {1}, .k = 1000, .n = 264})) {
    form.out = DType::kF32;
    expect_one_first_row(form, {{1}, {2}, {17}, {65}, {130}, {193}, {500}, {900}, {3, 40}});
  }
}

// The same behind every epilogue. Blocks of 128 have two families of kernels: for few rows a group
// one whose results lie by columns, else one whose results lie by rows.
TEST_F(HopperFp8, ARowsBitsDependOnTheRowAloneInEveryEpilogue) {
  struct Epilogue {
    DType out;
    bool alpha, accumulate, options;
  };
  for (const auto& [out, alpha, accumulate, options] :
       {Epilogue{DType::kF32, true, false, false}, Epilogue{DType::kF32, false, true, false},
        Epilogue{DType::kF32, true, true, false}, Epilogue{DType::kF32, false, false, true},
        Epilogue{DType::kBF16, false, false, false}, Epilogue{DType::kBF16, true, true, false}}) {
    for (Fp8Case form : modes({.sizes = {1}, .k = 1000, .n = 264})) {
      form.out = out;
      form.alpha = alpha;
      form.accumulate = accumulate;
      form.options = options;
      expect_one_first_row(form, {{1}, {48}, {65}, {300}, {3, 40}});
    }
  }
  Context context(ContextOptions{.backend = "cuda"});
  Fp8Case c{.sizes = {65}, .k = 1000, .n = 264, .accumulate = true};
  c.average_rows = 48;
  EXPECT_TRUE(kernel_of(context, Fp8Operands(c).args()).starts_with("sm90/gmm_64x128"));
  c.average_rows = 49;
  EXPECT_TRUE(kernel_of(context, Fp8Operands(c).args()).starts_with("sm90/grouped_"));
}

// Rows of the experts that other shards hold are zeros, or kept.
TEST_F(HopperFp8, LocalGroupsOfAShard) {
  for (const int64_t first : {0, 2, 5}) {
    for (const int64_t average_rows : {0, 16}) {  // both families of blocks of 128
      for (Fp8Case c : modes({.sizes = {70, 0, 130, 1, 257, 90, 0, 64}, .k = 272, .n = 136})) {
        c.tail = 20;
        c.local_groups = 3;
        c.group_offset = first;
        c.average_rows = average_rows;
        c.sm_count = 3;
        expect(c);
        c.accumulate = true;
        c.alpha = true;
        expect(c);
      }
    }
  }
}

// Nobody on the host has read these addresses. Where they are aligned, blocks of 128 stay on tensor
// cores; the other modes have the portable kernel.
TEST_F(HopperFp8, WeightsInListsOnTheDevice) {
  Context context(ContextOptions{.backend = "cuda"});
  for (const int64_t local : {-1, 2}) {
    for (const int64_t average_rows : {0, 16}) {
      for (Fp8Case c : modes({.sizes = {70, 0, 130, 257}, .k = 272, .n = 136, .tail = 9})) {
        c.weights_in_lists = true;
        c.average_rows = average_rows;
        c.local_groups = local;
        c.group_offset = local < 0 ? 0 : 2;
        c.sm_count = 3;
        expect(c);
        c.accumulate = true;
        expect(c);
        const std::string kernel = kernel_of(context, Fp8Operands(c).args());
        const bool blocks = c.lhs_mode == ScaleMode::kBlock128;
        EXPECT_TRUE(kernel.starts_with(blocks ? "sm90/grouped_" : "sm80/")) << kernel;
      }
    }
  }
}

// Rows by index bring their scales along: the same bits as of rows that lie in that order.
TEST_F(HopperFp8, RowsByIndexHaveTheirScales) {
  for (const Fp8Case& c : modes({.sizes = {100, 60, 200}, .k = 272, .n = 136, .tail = 5})) {
    SCOPED_TRACE(c.name());
    Context context(ContextOptions{.backend = "cuda", .sm_count = 2});
    Fp8Operands operands(c);
    GpuArray index(DType::kI32, {c.m()});
    std::vector<int64_t> source(static_cast<size_t>(c.m()));
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<int64_t>(i * 7 % 31);
    index.set(source);
    GmmArgs args = operands.args();
    args.lhs_rows = index.view();
    const Status status = gmm(context, args);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    operands.out().download();
    WrongElements wrong;
    for (int64_t row = 0; row < 360; ++row) {
      const int64_t group = row < 100 ? 0 : row < 160 ? 1 : 2;
      for (int64_t col = 0; col < c.n; ++col) {
        const verify::Expected expected =
            operands.expected(group, source[static_cast<size_t>(row)], col);
        const double got = operands.got(row, col);
        if (verify::agrees(c.out, expected, got)) continue;
        wrong.add(group, row, col, got, expected, verify::severity(c.out, expected, got));
      }
    }
    EXPECT_FALSE(wrong.any()) << wrong.message(360 * c.n);
  }
}

TEST_F(HopperFp8, RefusesWithTheReason) {
  Context context(ContextOptions{.backend = "cuda"});
  Fp8Operands operands({.sizes = {40}, .k = 256, .n = 128});
  GmmArgs args = operands.args();
  args.options.config = "sm90/gmm_192x128";
  const Status status = gmm(context, args);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("makes no sums of e4m3"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace cadre::tests
