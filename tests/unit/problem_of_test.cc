// problem_of: the Problem an op would pose, found without reading a byte of tensor data. The
// addresses here are made up: reading one would end the test.
#include "ops/problem_of.h"

#include <gtest/gtest.h>

#include <string>

namespace cadre {
namespace {

constexpr Device kGpu{DeviceKind::kCuda, 0};

void* address(uintptr_t region) { return reinterpret_cast<void*>(region << 50); }

TEST(ProblemOf, DescribesTensorsNobodyCouldAllocate) {
  const int64_t m = int64_t{1} << 33;
  const GmmArgs args{
      .lhs = TensorView::contiguous(address(1), DType::kBF16, {m, 7168}, kGpu),
      .rhs = TensorView::contiguous(address(2), DType::kBF16, {4096, 2048, 7168}, kGpu),
      .group_sizes = {address(3), DType::kI64, 4096, kGpu},
      .out = TensorView::contiguous(address(4), DType::kF32, {m, 2048}, kGpu),
      .transpose_rhs = true};
  plan::Problem problem;
  const Status status = ops::problem_of(args, &problem);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(to_string(problem),
            "gmm m=8589934592 k=7168 n=2048 groups=4096 bf16 x bf16^T -> f32 in f32 on cuda:0, "
            "device sizes");
  EXPECT_EQ(problem.average_rows, m / 4096);
}

TEST(ProblemOf, FailsAsTheOpItselfFails) {
  const int32_t sizes[] = {3, 4};
  const TgmmArgs args{.lhs = TensorView::contiguous(address(1), DType::kF32, {6, 5}),
                      .rhs = TensorView::contiguous(address(2), DType::kF32, {6, 8}),
                      .group_sizes = {sizes, DType::kI32, 2},
                      .out = TensorView::contiguous(address(3), DType::kF32, {2, 5, 8})};
  plan::Problem problem;
  Context context;
  const Status asked = ops::problem_of(args, &problem);
  EXPECT_EQ(asked.code(), StatusCode::kInvalid);
  EXPECT_EQ(asked.message(), tgmm(context, args).message());
}

TEST(ProblemOf, OffsetsOnADeviceAreBoundedByTheCapacityAlone) {
  const auto packed = [](uintptr_t region, int64_t capacity) {
    GroupedTensor tensor =
        GroupedTensor::packed(address(region), DType::kF32, 3, 0, 4, capacity, kGpu);
    tensor.offsets = Extent(GroupSizes(address(region + 8), DType::kI64, 3, kGpu), capacity);
    return tensor;
  };
  for (const int64_t capacity : {0, 100}) {
    const GroupedGemmArgs args{
        .a = packed(1, capacity),
        .b = TensorView::contiguous(address(2), DType::kF32, {3, 4, 4}, kGpu),
        .d = packed(3, capacity)};
    plan::Problem problem;
    EXPECT_EQ(ops::problem_of(args, &problem).message(), "") << capacity;
  }
}

// The device would count from an element on towards those before the buffer.
TEST(ProblemOf, PackedBuffersWithDimsOnADeviceHaveNoNegativeStrides) {
  const Extent rows(GroupSizes(address(9), DType::kI64, 3, kGpu), 16);
  const auto packed = [&](uintptr_t region) {
    return GroupedTensor::packed(address(region), DType::kF32, 3, rows, 4, 1000, kGpu);
  };
  const auto error = [](const GroupedGemmArgs& args) {
    plan::Problem problem;
    return ops::problem_of(args, &problem).message();
  };
  GroupedGemmArgs args{.a = packed(1),
                       .b = TensorView::contiguous(address(2), DType::kF32, {3, 4, 4}, kGpu),
                       .d = packed(3)};
  EXPECT_EQ(error(args), "");
  args.a.contiguous = false;
  args.a.row_stride = -4;
  EXPECT_EQ(
      error(args),
      "grouped_gemm: a.row_stride = -4, .col_stride = 1, expected 0 or more in a packed buffer");
  args.a.row_stride = 0;
  EXPECT_EQ(error(args), "");  // a broadcast row
  args.a.col_stride = -1;
  EXPECT_EQ(
      error(args),
      "grouped_gemm: a.row_stride = 0, .col_stride = -1, expected 0 or more in a packed buffer");
  args.a = packed(1);
  args.d.contiguous = false;
  args.d.row_stride = 3;  // closer than the four columns
  EXPECT_EQ(
      error(args),
      "grouped_gemm: d overlaps itself (strides 3, 1), expected every element at its own address");
}

TEST(ProblemOf, ColumnsOfOneBufferMayBeInputAndOutput) {
  const int32_t sizes[] = {3, 4};
  float buffer[7 * 9] = {};
  const auto columns = [&](int64_t first, int64_t count) {
    return TensorView::strided(buffer + first, DType::kF32, {7, count}, {9, 2});
  };
  GmmArgs args{.lhs = columns(0, 4),
               .rhs = TensorView::contiguous(address(2), DType::kF32, {2, 4, 4}),
               .group_sizes = {sizes, DType::kI32, 2},
               .out = columns(1, 4)};
  plan::Problem problem;
  EXPECT_EQ(ops::problem_of(args, &problem).message(), "");
  args.out = columns(2, 4);
  EXPECT_EQ(ops::problem_of(args, &problem).message(),
            "gmm: out overlaps lhs, expected separate memory");
}

}  // namespace
}  // namespace cadre
