// Ranges of calls reach a tool that listens to NVTX, and nothing happens without one. Needs no GPU.
#include "cuda/trace_range.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "nvtx_listener.h"
#include "tests/support/scoped_environment.h"

namespace cadre {
namespace {

plan::Problem some_problem(int64_t m) {
  plan::Problem problem;
  problem.op = plan::Op::kGmm;
  problem.m = m;
  problem.k = 48;
  problem.n = 80;
  problem.num_groups = problem.num_local_groups = 3;
  return problem;
}

// Both in one test: NVTX looks for a tool once in a process. Without one is looked at in a child.
TEST(TraceRange, ReachesAToolThatListensAndNobodyElse) {
  EXPECT_EXIT(
      {
        const tests::ScopedEnvironment nobody("NVTX_INJECTION64_PATH", nullptr);
        const bool listened = cuda::TraceRange::listening();
        { const cuda::TraceRange range(some_problem(7)); }
        std::exit(listened ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");

  const tests::ScopedEnvironment tool("NVTX_INJECTION64_PATH", CADRE_NVTX_LISTENER);
  ASSERT_TRUE(cuda::TraceRange::listening());
  void* listener = dlopen(CADRE_NVTX_LISTENER, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(listener, nullptr) << dlerror();
  const auto* heard = static_cast<const NvtxHeard*>(dlsym(listener, "cadre_nvtx_heard"));
  ASSERT_NE(heard, nullptr);
  EXPECT_STREQ(heard->domain, "cadre");
  {
    const cuda::TraceRange outer(some_problem(1234));
    EXPECT_EQ(heard->depth, 1);
    EXPECT_EQ(std::string(heard->last).rfind("gmm m=1234 k=48 n=80 ", 0), 0u) << heard->last;
    const cuda::TraceRange inner(some_problem(5));
    EXPECT_EQ(heard->depth, 2);
  }
  EXPECT_EQ(heard->depth, 0);
  EXPECT_EQ(heard->pushed, 2);
}

}  // namespace
}  // namespace cadre
