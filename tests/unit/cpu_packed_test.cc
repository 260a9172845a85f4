// Packed panels, whether shared by threads or kept by the caller, change nothing but the speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cadre/gmm.h"
#include "cadre/pack_weights.h"
#include "core/convert.h"
#include "cpu/isa.h"
#include "cpu/kernel_table.h"
#include "cpu/work_units.h"

namespace cadre {
namespace {

std::vector<char> random_elements(DType dtype, int64_t count, uint32_t seed) {
  std::vector<char> bytes(static_cast<size_t>(count) * size_of(dtype));
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  for (int64_t i = 0; i < count; ++i) {
    if (dtype == DType::kI8) {
      bytes[static_cast<size_t>(i)] = static_cast<char>(random());
    } else {
      store_rounded(bytes.data(), dtype, i, unit(random));
    }
  }
  return bytes;
}

struct Layer {
  DType dtype;
  bool transpose_rhs;
  std::vector<int64_t> sizes;
  int64_t k, n;
  std::vector<char> lhs, rhs;

  Layer(DType type, bool transposed, std::vector<int64_t> group_sizes, int64_t inner, int64_t outer)
      : dtype(type), transpose_rhs(transposed), sizes(std::move(group_sizes)), k(inner), n(outer) {
    lhs = random_elements(type, rows() * k, 1);
    rhs = random_elements(type, groups() * k * n, 2);
  }
  int64_t groups() const { return static_cast<int64_t>(sizes.size()); }
  int64_t rows() const {
    int64_t sum = 0;
    for (const int64_t size : sizes) sum += size;
    return sum;
  }
  DType out_dtype() const { return default_output_dtype(dtype, dtype); }
  TensorView rhs_view() const {
    return transpose_rhs ? TensorView::contiguous(rhs.data(), dtype, {groups(), n, k})
                         : TensorView::contiguous(rhs.data(), dtype, {groups(), k, n});
  }

  Status run(const ContextOptions& options, const PackedWeights* packed,
             std::vector<char>* out) const {
    out->assign(static_cast<size_t>(rows() * n) * size_of(out_dtype()), '\xff');
    Context context(options);
    GmmArgs args;
    args.lhs = TensorView::contiguous(lhs.data(), dtype, {rows(), k});
    args.rhs = rhs_view();
    args.group_sizes = GroupSizes(sizes.data(), DType::kI64, groups());
    args.out = TensorView::contiguous(out->data(), out_dtype(), {rows(), n});
    args.transpose_rhs = transpose_rhs;
    args.packed_rhs = packed;
    return gmm(context, args);
  }
};

class PackedOnEveryIsa : public testing::TestWithParam<cpu::Isa> {};

TEST_P(PackedOnEveryIsa, PackedWeightsGiveTheSameBits) {
  const ContextOptions options{.num_threads = 2, .isa = std::string(cpu::name_of(GetParam()))};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI8}) {
    for (const bool transposed : {false, true}) {
      const Layer layer(dtype, transposed, {3, 0, 90, 17, 1}, 1100, 70);
      PackedWeights packed;
      Context context(options);
      ASSERT_TRUE(
          pack_weights(context, {.rhs = layer.rhs_view(), .transpose_rhs = transposed}, &packed)
              .ok());
      EXPECT_GE(packed.size_bytes(), layer.rhs.size());
      std::vector<char> expected, got;
      ASSERT_TRUE(layer.run(options, nullptr, &expected).ok());
      ASSERT_TRUE(layer.run(options, &packed, &got).ok());
      EXPECT_EQ(got, expected) << name_of(dtype) << (transposed ? " [n, k]" : " [k, n]");
    }
  }
}

TEST_P(PackedOnEveryIsa, SharedPanelsGiveTheSameBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    const Layer layer(dtype, false, {5, 1200, 0, 40}, 700, 200);
    const cpu::GemmKernel& kernel = *cpu::find_kernel(
        GetParam(), dtype, dtype, dtype == DType::kI8 ? DType::kI32 : DType::kF32);
    const cpu::GemmPlan plan{&kernel, cpu::make_blocking(kernel, cpu::cache_sizes()), 4};
    const cpu::GemmItem large{.m = 1200, .n = layer.n, .k = layer.k};
    ASSERT_TRUE(cpu::shares_packed_b(large, cpu::total_work({large}), plan));
    const std::string isa(cpu::name_of(GetParam()));
    std::vector<char> expected, got;
    ASSERT_TRUE(layer.run({.num_threads = 1, .isa = isa}, nullptr, &expected).ok());
    ASSERT_TRUE(layer.run({.num_threads = 4, .isa = isa}, nullptr, &got).ok());
    EXPECT_EQ(got, expected) << name_of(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, PackedOnEveryIsa, testing::ValuesIn(cpu::available_isas()),
                         [](const auto& test) { return std::string(cpu::name_of(test.param)); });

TEST(PackedWeights, OfAnotherShapeIsAnError) {
  const Layer layer(DType::kF32, false, {4, 4}, 30, 20);
  const Layer other(DType::kF32, false, {4, 4}, 31, 20);
  PackedWeights packed;
  Context context;
  ASSERT_TRUE(pack_weights(context, {.rhs = other.rhs_view()}, &packed).ok());
  std::vector<char> out;
  const Status status = layer.run({}, &packed, &out);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), testing::HasSubstr("k 31"));
  EXPECT_THAT(out, testing::Each('\xff'));
  EXPECT_EQ(layer.run({}, nullptr, &out).code(), StatusCode::kOk);
}

TEST(PackedWeights, ForAnotherKernelTheWeightsThemselvesAreUsed) {
  const Layer layer(DType::kF32, false, {4, 9}, 30, 20);
  PackedWeights packed;
  Context scalar({.isa = "scalar"});
  ASSERT_TRUE(pack_weights(scalar, {.rhs = layer.rhs_view()}, &packed).ok());
  EXPECT_EQ(packed.kernel(), "scalar_f32");
  std::vector<char> expected, got;
  ASSERT_TRUE(layer.run({}, nullptr, &expected).ok());
  ASSERT_TRUE(layer.run({}, &packed, &got).ok());
  EXPECT_EQ(got, expected);
}

TEST(PackedWeights, BadArgumentsNameThemselves) {
  Context context;
  PackedWeights packed;
  EXPECT_THAT(pack_weights(context, {}, &packed).message(), testing::HasSubstr("rhs"));
  const Layer layer(DType::kF32, false, {1}, 2, 2);
  EXPECT_THAT(
      pack_weights(context, {.rhs = layer.rhs_view(), .lhs_dtype = DType::kI64}, &packed).message(),
      testing::HasSubstr("lhs_dtype = i64"));
  std::vector<char> out;
  EXPECT_THAT(layer.run({}, &packed, &out).message(), testing::HasSubstr("packed_rhs is empty"));
}

}  // namespace
}  // namespace cadre
