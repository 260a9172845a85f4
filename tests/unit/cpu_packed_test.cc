// Packed panels, whether shared by threads or kept by the caller, change nothing but the speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
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

struct BadWeights {
  const char* message;
  std::function<void(PackWeightsArgs&)> spoil;
  StatusCode code = StatusCode::kInvalid;
};

TEST(PackedWeights, BadArgumentsNameThemselves) {
  constexpr int64_t kHuge = int64_t{1} << 40;
  static const Layer layer(DType::kF32, false, {1, 2, 1}, 2, 2);
  static void* one_null[] = {const_cast<char*>(layer.rhs.data()), nullptr,
                             const_cast<char*>(layer.rhs.data())};
  static const int64_t k_of_group[] = {2, 2, 2};
  const auto one = [] { return TensorView::contiguous(layer.rhs.data(), DType::kF32, {2, 2}); };
  const BadWeights rows[] = {
      {"pack_weights: rhs = nothing, expected one stacked tensor or a list of pointers",
       [](PackWeightsArgs& w) { w.rhs = {}; }},
      {"pack_weights: rhs = rows of one tensor, expected one stacked tensor or a list of pointers "
       "(rhs.shape = [2, 2])",
       [&](PackWeightsArgs& w) { w.rhs = one(); }},
      {"pack_weights: rhs.pointers[1] = null, expected a pointer",
       [&](PackWeightsArgs& w) { w.rhs = GroupedTensor::list(one_null, 3, one()); }},
      {"pack_weights: rhs.pointers = null, expected 3 pointers",
       [&](PackWeightsArgs& w) { w.rhs = GroupedTensor::list(nullptr, 3, one()); }},
      {"pack_weights: rhs.data = null, expected a pointer",
       [](PackWeightsArgs& w) { w.rhs.data = nullptr; }},
      {"pack_weights: rhs.num_groups = -1, expected 0 or more",
       [](PackWeightsArgs& w) { w.rhs.num_groups = -1; }},
      {"pack_weights: rhs.rows = -2, expected 0 or more",
       [](PackWeightsArgs& w) { w.rhs.rows = -2; }},
      {"pack_weights: rhs.cols = -2, expected 0 or more",
       [](PackWeightsArgs& w) { w.rhs.cols = -2; }},
      {"pack_weights: rhs.rows = per-group, expected one shape for all groups",
       [&](PackWeightsArgs& w) {
         one_null[1] = one_null[0];
         w.rhs = GroupedTensor::list(one_null, 3, one());
         w.rhs.rows = GroupSizes(k_of_group, DType::kI64, 3);
       }},
      {"pack_weights: rhs.strides = beyond 64-bit addresses, expected an extent below 2^63 bytes",
       [](PackWeightsArgs& w) {
         w.rhs = TensorView::contiguous(layer.rhs.data(), DType::kF32, {1 << 24, kHuge, 4096});
       }},
      {"pack_weights: rhs.strides = beyond 64-bit addresses, expected an extent below 2^63 bytes",
       [](PackWeightsArgs& w) {
         w.rhs = GroupedTensor::list(
             one_null, 3, TensorView::contiguous(layer.rhs.data(), DType::kF32, {kHuge, kHuge}));
       }},
      // One matrix for all groups is a valid rhs, and so are matrices without elements; a copy for
      // each group is more than there can be.
      {"pack_weights: no memory for 16777216 packed matrices of [4096, 4096]",
       [](PackWeightsArgs& w) {
         w.rhs =
             TensorView::strided(layer.rhs.data(), DType::kF32, {1 << 24, 4096, 4096}, {0, 0, 0});
       },
       StatusCode::kInternal},
      {"pack_weights: no memory for 2 packed matrices of [1099511627776, 1099511627776]",
       [](PackWeightsArgs& w) {
         w.rhs = TensorView::strided(layer.rhs.data(), DType::kF32, {2, kHuge, kHuge}, {0, 0, 0});
       },
       StatusCode::kInternal},
      {"pack_weights: rhs.num_groups = 1099511627776, expected at most 2^24",
       [](PackWeightsArgs& w) {
         w.rhs = TensorView::contiguous(nullptr, DType::kF32, {kHuge, 0, 8});
       }},
      {"pack_weights: rhs.device = cuda:1, expected cpu",
       [](PackWeightsArgs& w) {
         w.rhs.device = {DeviceKind::kCuda, 1};
       }},
      {"pack_weights: rhs.pointers.device = cuda:0, expected rhs.device = cpu",
       [&](PackWeightsArgs& w) {
         w.rhs = GroupedTensor::list(one_null, 3, one(), {DeviceKind::kCuda, 0});
       }},
      {"pack_weights: rhs.dtype = 99, expected a known dtype",
       [](PackWeightsArgs& w) { w.rhs.dtype = static_cast<DType>(99); }},
      {"pack_weights: rhs.dtype = i64, expected f64, f32, bf16, f16 or i8",
       [](PackWeightsArgs& w) { w.rhs.dtype = DType::kI64; }},
      {"pack_weights: lhs_dtype = i64, expected f64, f32, bf16, f16 or i8",
       [](PackWeightsArgs& w) { w.lhs_dtype = DType::kI64; }},
      {"pack_weights: lhs_dtype = e4m3, expected f64, f32, bf16, f16 or i8",
       [](PackWeightsArgs& w) { w.lhs_dtype = DType::kE4M3; }},
      {"pack_weights: out_dtype = i32, expected f64, f32, bf16 or f16",
       [](PackWeightsArgs& w) { w.out_dtype = DType::kI32; }},
      {"pack_weights: out_dtype = i8, expected f64, f32, bf16 or f16",
       [](PackWeightsArgs& w) { w.out_dtype = DType::kI8; }},
  };
  Context context;
  PackedWeights packed;
  ASSERT_TRUE(pack_weights(context, {.rhs = layer.rhs_view()}, &packed).ok());
  const size_t size_bytes = packed.size_bytes();
  for (const BadWeights& row : rows) {
    PackWeightsArgs args{.rhs = layer.rhs_view()};
    row.spoil(args);
    const Status status = pack_weights(context, args, &packed);
    EXPECT_EQ(status.code(), row.code) << row.message;
    EXPECT_THAT(status.message(), testing::StartsWith(row.message));
    EXPECT_EQ(packed.size_bytes(), size_bytes) << "what was packed before is kept";
  }
  EXPECT_EQ(pack_weights(context, {.rhs = layer.rhs_view()}, nullptr).message(),
            "pack_weights: packed = null, expected an object");
}

/// No groups, or matrices without elements, with no memory at all behind them.
TEST(PackedWeights, OfNothingAreValid) {
  const std::initializer_list<int64_t> shapes[] = {{0, 3, 4}, {2, 0, 40}, {2, 3, 0}};
  for (const auto& shape : shapes) {
    Context context;
    PackedWeights packed;
    const TensorView rhs = TensorView::contiguous(nullptr, DType::kF32, shape);
    ASSERT_TRUE(pack_weights(context, {.rhs = rhs}, &packed).ok());
    EXPECT_FALSE(packed.empty());
    const int64_t groups = rhs.shape[0], k = rhs.shape[1], n = rhs.shape[2];
    const Layer layer(DType::kF32, false, std::vector<int64_t>(static_cast<size_t>(groups), 3), k,
                      n);
    std::vector<char> out;
    const Status status = layer.run({}, &packed, &out);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_THAT(out, testing::Each(0));
  }
}

/// Whether anything is to be computed or not, and on whatever backend.
TEST(PackedWeights, OfAnotherLayerAreAnError) {
  const Layer layer(DType::kF32, false, {0, 0}, 30, 20);
  const Layer more_groups(DType::kF32, false, {1, 1, 1}, 30, 20);
  const Layer other_k(DType::kF32, false, {1, 1}, 31, 20);
  const Layer turned(DType::kF32, true, {1, 1}, 20, 30);
  const Layer other_type(DType::kBF16, false, {1, 1}, 30, 20);
  std::vector<char> out;
  PackedWeights packed;
  EXPECT_EQ(layer.run({}, &packed, &out).message(),
            "gmm: packed_rhs = empty, expected what pack_weights has filled");
  Context context;
  for (const auto& [other, received] :
       {std::pair{&more_groups, "f32 [3, k 30, n 20]"}, std::pair{&other_k, "f32 [2, k 31, n 20]"},
        std::pair{&turned, "f32 [2, k 20, n 30]"},
        std::pair{&other_type, "bf16 [2, k 30, n 20]"}}) {
    ASSERT_TRUE(pack_weights(context,
                             {.rhs = other->rhs_view(), .transpose_rhs = other->transpose_rhs},
                             &packed)
                    .ok());
    for (const char* backend : {"", "cpu", "reference"}) {
      const Status status = layer.run({.backend = backend}, &packed, &out);
      EXPECT_EQ(status.code(), StatusCode::kInvalid);
      EXPECT_EQ(status.message(), std::string("gmm: packed_rhs = ") + received +
                                      ", expected rhs = f32 [2, k 30, n 20]");
    }
  }
}

/// They would be ignored there.
TEST(PackedWeights, ForTensorsOfAGpuAreAnError) {
  const Layer layer(DType::kF32, false, {2}, 3, 4);
  Context context;
  PackedWeights packed;
  ASSERT_TRUE(pack_weights(context, {.rhs = layer.rhs_view()}, &packed).ok());
  const Device gpu{DeviceKind::kCuda, 0};
  std::vector<float> out(8);
  GmmArgs args;
  args.lhs = TensorView::contiguous(layer.lhs.data(), DType::kF32, {2, 3}, gpu);
  args.rhs = TensorView::contiguous(layer.rhs.data(), DType::kF32, {1, 3, 4}, gpu);
  args.out = TensorView::contiguous(out.data(), DType::kF32, {2, 4}, gpu);
  args.group_sizes = GroupSizes(layer.sizes.data(), DType::kI64, 1);
  args.packed_rhs = &packed;
  EXPECT_EQ(gmm(context, args).message(),
            "gmm: packed_rhs = given, expected none because lhs.device = cuda:0");
}

}  // namespace
}  // namespace cadre
