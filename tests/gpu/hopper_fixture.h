// What tests of single Hopper kernels share: a context on few multiprocessors, in which every CTA
// takes many tiles, the portable kernels whose bits are expected, and one gmm and one tgmm over the
// same rows.
#pragma once

#include <string>

#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/hopper_subjects.h"

namespace cadre::tests {

/// Runs over names of hopper_subjects().
class HopperKernelTest : public HopperTest, public testing::WithParamInterface<std::string> {
 protected:
  struct Extent {
    int64_t m, k, n, groups;
  };

  explicit HopperKernelTest(const Extent& extent)
      : lhs(DType::kBF16, {extent.m, extent.k}),
        rhs(DType::kBF16, {extent.groups, extent.k, extent.n}),
        rows(DType::kBF16, {extent.m, extent.n}) {}

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    lhs.fill_random(1);
    rhs.fill_random(2);
    rows.fill_random(3);
  }

  static const HopperSubject& subject() { return *find_hopper_subject(GetParam()); }

  /// The subject's kernel.
  static CallOptions pinned() {
    CallOptions options;
    if (!subject().kernel.empty()) options.config = subject().kernel.c_str();
    return options;
  }

  Status run_gmm(Context& on, const GpuArray& out, const GpuArray& sizes, bool accumulate,
                 const CallOptions& options) const {
    return gmm(on, {.lhs = lhs.view(),
                    .rhs = rhs.view(),
                    .group_sizes = sizes.sizes(),
                    .out = out.view(),
                    .accumulate = accumulate,
                    .options = options});
  }

  Status run_tgmm(Context& on, const GpuArray& out, const GpuArray& sizes, bool accumulate,
                  const CallOptions& options) const {
    return tgmm(on, {.lhs = lhs.view(),
                     .rhs = rows.view(),
                     .group_sizes = sizes.sizes(),
                     .out = out.view(),
                     .accumulate = accumulate,
                     .options = options});
  }

  /// Fewer multiprocessors than there are tiles, whatever the subject has.
  Context context{[] {
    ContextOptions options = BackendUnderTest::options_for(GetParam());
    options.sm_count = 3;
    return options;
  }()};
  Context portable = portable_context();
  GpuArray lhs, rhs, rows;
};

}  // namespace cadre::tests
