// Contexts, the registry and the environment: what is asked for is honoured or named in an error.
#include "cadre/context.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "backend/registry.h"
#include "cadre/gmm.h"
#include "plan/context_state.h"
#include "tests/support/scoped_environment.h"

namespace cadre {
namespace {

using tests::ScopedEnvironment;

Status small_gmm(Context& context, DType dtype, const char* config = nullptr, Device device = {}) {
  static char lhs[64] = {}, rhs[64] = {};
  static float out[16] = {};
  const int32_t sizes[1] = {2};
  GmmArgs args;
  args.lhs = TensorView::contiguous(lhs, dtype, {2, 2}, device);
  args.rhs = TensorView::contiguous(rhs, dtype, {1, 2, 3}, device);
  args.out = TensorView::contiguous(out, DType::kF32, {2, 3}, device);
  args.group_sizes = GroupSizes(sizes, DType::kI32, 1);
  args.options.config = config;
  return gmm(context, args);
}

TEST(Registry, RefusalsOfEveryBackendAreListedWithReasons) {
  // A device that no machine has.
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Context context;
    const Status status = small_gmm(context, dtype, nullptr, {DeviceKind::kCuda, 4095});
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    for (const auto& backend : backend::Registry::instance().backends()) {
      const std::string name = std::string(backend->name()) + ": ";
      const size_t found = status.message().find("; " + name);
      ASSERT_NE(found, std::string::npos) << status.message();
      EXPECT_GT(status.message().find_first_of(";", found + 2), found + 2 + name.size() + 5)
          << "no reason after " << name;
    }
    EXPECT_NE(status.message().find("gmm: no backend takes gmm m=2 k=2 n=3"), std::string::npos);
    EXPECT_NE(status.message().find("host memory alone"), std::string::npos) << status.message();
  }
}

TEST(Registry, ReferenceIsLast) {
  const auto& backends = backend::Registry::instance().backends();
  ASSERT_FALSE(backends.empty());
  EXPECT_EQ(backends.back()->name(), "reference");
  EXPECT_EQ(backend::Registry::instance().find("no such backend"), nullptr);
}

TEST(Registry, PinnedKernelIsTakenOrNamed) {
  Context context;
  EXPECT_TRUE(small_gmm(context, DType::kF32, "reference").ok());
  const Status status = small_gmm(context, DType::kF32, "no-such-kernel");
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_EQ(status.message().find("gmm: options.config = \"no-such-kernel\", expected one of "), 0u)
      << status.message();
  EXPECT_NE(status.message().find("reference"), std::string::npos);
}

TEST(Registry, PinnedKernelIsNamedWhereThereIsNothingToDo) {
  Context context;
  float data[4] = {};
  const int32_t sizes[1] = {0};
  GmmArgs args{.lhs = TensorView::contiguous(data, DType::kF32, {0, 2}),
               .rhs = TensorView::contiguous(data, DType::kF32, {1, 2, 2}),
               .group_sizes = {sizes, DType::kI32, 1},
               .out = TensorView::contiguous(data, DType::kF32, {0, 2})};
  size_t size_bytes = 1;
  for (const char* config : {"junk", ""}) {
    args.options.config = config;
    EXPECT_EQ(gmm(context, args).message().find("gmm: options.config = \""), 0u);
    EXPECT_EQ(gmm_workspace_size(context, args, &size_bytes).code(), StatusCode::kInvalid);
  }
  for (const std::string& config : backend::Registry::instance().find("cpu")->kernels()) {
    args.options.config = config.c_str();
    EXPECT_EQ(gmm(context, args).message(), "");
  }
}

TEST(Context, ChecksDevicesThatThereAreAlone) {
  Context context;
  EXPECT_TRUE(context.check({DeviceKind::kCpu, 0}, nullptr).ok());
  EXPECT_EQ(context.check({static_cast<DeviceKind>(7), 0}, nullptr).message(),
            "check: device.kind = 7, expected 0 (cpu) or 1 (cuda)");
  EXPECT_EQ(context.check({DeviceKind::kCuda, -1}, nullptr).message(),
            "check: device.index = -1, expected 0 or more");
  EXPECT_EQ(context.check({DeviceKind::kCuda, 4711}, nullptr).code(), StatusCode::kUnsupported);
}

TEST(Registry, SelectionSaysWhoRefusedBeforeTheChosenOne) {
  Context context;
  plan::Problem problem;
  problem.m = problem.k = problem.n = 1;
  problem.lhs.dtype = problem.rhs.dtype = problem.out.dtype = DType::kF32;
  backend::Selection selection;
  ASSERT_TRUE(
      backend::Registry::instance().select(context.state(), problem, "reference", &selection).ok());
  EXPECT_EQ(selection.backend->name(), "reference");
  EXPECT_EQ(selection.refusals.size(), backend::Registry::instance().backends().size() - 1);
  for (const backend::Refusal& refusal : selection.refusals) EXPECT_FALSE(refusal.reason.empty());
}

TEST(Context, UnknownOptionsAreReportedByStatusAndEveryCall) {
  ContextOptions options;
  options.backend = "quantum";
  Context context(options);
  EXPECT_EQ(context.status().message().find("context: backend = \"quantum\", expected one of "),
            0u);
  EXPECT_EQ(small_gmm(context, DType::kF32).message(), context.status().message());

  options = {};
  options.num_threads = -1;
  EXPECT_EQ(Context(options).status().message(), "context: num_threads = -1, expected 0 to 4096");
  options.num_threads = 4097;
  EXPECT_EQ(Context(options).status().message(), "context: num_threads = 4097, expected 0 to 4096");
  options = {};
  options.isa = "mmx";
  EXPECT_EQ(Context(options).status().message().find("context: isa = \"mmx\""), 0u);
  options = {};
  options.sm_count = -2;
  EXPECT_EQ(Context(options).status().message(), "context: sm_count = -2, expected 0 or more");
}

TEST(Environment, VariablesAreReadAndBadOnesNamed) {
  {
    const ScopedEnvironment backend("CADRE_BACKEND", "reference");
    const ScopedEnvironment threads("CADRE_NUM_THREADS", "3");
    const Context context;
    EXPECT_TRUE(context.status().ok());
    EXPECT_EQ(context.state().backend, "reference");
    EXPECT_EQ(context.state().num_threads, 3);
    ContextOptions options;
    options.num_threads = 5;
    EXPECT_EQ(Context(options).state().num_threads, 5);
  }
  for (const char* bad : {"0", "-1", "many", "3x", "4097", "2000000000", "99999999999999999999"}) {
    const ScopedEnvironment threads("CADRE_NUM_THREADS", bad);
    EXPECT_EQ(Context().status().message(), "context: CADRE_NUM_THREADS = \"" + std::string(bad) +
                                                "\", expected a whole number from 1 to 4096");
  }
  for (const char* good : {"", "0", "1"}) {
    const ScopedEnvironment check("CADRE_CHECK", good);
    EXPECT_TRUE(Context().status().ok()) << good;
  }
  for (const char* bad : {"maybe", "true", "2", "01", " 1"}) {
    const ScopedEnvironment check("CADRE_CHECK", bad);
    Context context;
    EXPECT_EQ(context.status().message(),
              "context: CADRE_CHECK = \"" + std::string(bad) + "\", expected 0 or 1");
    EXPECT_EQ(small_gmm(context, DType::kF32).message(), context.status().message());
  }
}

TEST(ScopedEnvironment, RestoresTheVariable) {
  const char* name = "CADRE_TEST_ONLY_VARIABLE";
  ASSERT_EQ(std::getenv(name), nullptr);
  {
    const ScopedEnvironment outer(name, "a");
    {
      const ScopedEnvironment inner(name, "b");
      EXPECT_STREQ(std::getenv(name), "b");
    }
    EXPECT_STREQ(std::getenv(name), "a");
    {
      const ScopedEnvironment inner(name, nullptr);
      EXPECT_EQ(std::getenv(name), nullptr);
    }
    EXPECT_STREQ(std::getenv(name), "a");
  }
  EXPECT_EQ(std::getenv(name), nullptr);
}

TEST(ScopedEnvironment, IsTheOnlyWayATestSetsAVariable) {
  int looked_at = 0;
  const std::string forbidden = std::string("set") + "env(";
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests")) {
    const std::filesystem::path& path = entry.path();
    const auto extension = path.extension();
    if (extension != ".cc" && extension != ".cu" && extension != ".h") continue;
    if (path.filename() == "scoped_environment.h") continue;
    std::stringstream content;
    content << std::ifstream(path).rdbuf();
    ++looked_at;
    EXPECT_EQ(content.str().find(forbidden), std::string::npos) << path;
  }
  EXPECT_GT(looked_at, 10);
}

}  // namespace
}  // namespace cadre
