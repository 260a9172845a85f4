// The promise that lets a measurement choose among CUDA kernels: every candidate of a product gives
// the bits of the library's own choice.
#include <gtest/gtest.h>

#include "backend/registry.h"
#include "backend/tuning.h"
#include "core/text.h"
#include "ops/problem_of.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 400, kK = 328, kN = 264;
const std::vector<int64_t> kRows = {130, 0, 65, 1, 193};  // 11 rows are tail

struct Options {
  const char* name;
  DType element, out;
  bool transpose_rhs, bias, accumulate;
  int64_t average_rows;
};

constexpr Options kOptions[] = {
    {"plain", DType::kBF16, DType::kBF16, true, false, false, 0},
    {"to_the_input", DType::kF16, DType::kF16, false, false, false, 0},
    {"few_rows", DType::kBF16, DType::kBF16, true, false, false, 4},
    {"bias", DType::kBF16, DType::kBF16, true, true, false, 0},
    {"f32_accumulate", DType::kBF16, DType::kF32, false, false, true, 600}};

class TuningBits : public GpuBackendTest {};

TEST_P(TuningBits, EveryCandidateOfGmmGivesTheBitsOfTheOwnChoice) {
  if (IsSkipped()) return;
  const auto groups = static_cast<int64_t>(kRows.size());
  for (const Options& options : kOptions) {
    GpuArray lhs(options.element, {kM, kK}), bias(options.element, {groups, kN});
    GpuArray rhs(options.element,
                 options.transpose_rhs ? std::vector{groups, kN, kK} : std::vector{groups, kK, kN});
    GpuArray sizes(DType::kI32, {groups});
    lhs.fill_random(1);
    rhs.fill_random(2);
    bias.fill_random(3);
    sizes.set(kRows);
    const auto args_for = [&](const GpuArray& out) {
      GmmArgs args{.lhs = lhs.view(),
                   .rhs = rhs.view(),
                   .group_sizes = sizes.sizes(),
                   .out = out.view(),
                   .transpose_rhs = options.transpose_rhs,
                   .accumulate = options.accumulate};
      if (options.bias) args.bias = GroupedTensor::vectors(bias.view());
      args.options.average_rows = options.average_rows;
      return args;
    };
    GpuArray first(options.out, {kM, kN});
    first.fill_random(4);
    plan::Problem problem;
    ASSERT_TRUE(ops::problem_of(args_for(first), &problem).ok());
    backend::Selection selection;
    ASSERT_TRUE(
        backend::Registry::instance().select(context.state(), problem, nullptr, &selection).ok());
    const auto candidates =
        backend::tuning_candidates(context.state(), *selection.backend, problem);
    ASSERT_FALSE(candidates.empty()) << options.name;
    for (size_t i = 0; i < candidates.size(); ++i) {
      GpuArray other(options.out, {kM, kN});
      other.fill_random(4);
      GpuArray& out = i == 0 ? first : other;
      GmmArgs args = args_for(out);
      const std::string kernel(candidates[i].kernel);
      args.options.config = kernel.c_str();
      const Status status = gmm(context, args);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << kernel;
      out.download();
      EXPECT_TRUE(out.same_after(first)) << options.name << ": " << kernel;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Gpu, TuningBits, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
