// What the backend refuses before a launch, and how a launch that fails is reported.
#include "cuda/kernel_family.h"
#include "cuda/sm90/launch.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/gpu/noop_kernel.h"

namespace cadre::tests {
namespace {

void expect_message(const Status& status, StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
}

class LaunchErrors : public GpuTest {
 protected:
  static cuda::Launch launch() {
    cuda::Launch launch;
    launch.op = "gmm";
    EXPECT_TRUE(cuda::device_properties(0, &launch.device).ok());
    return launch;
  }
};

TEST_F(LaunchErrors, AreNamedByTheCallThatCausedThem) {
  const std::string named = "gmm: kernel tests/noop failed to launch: ";
  expect_message(launch_noop(launch(), {.threads = 4096}), StatusCode::kInternal, named);
  expect_message(launch_noop(launch(), {.threads = 32, .shared_bytes = 1 << 24}),
                 StatusCode::kInternal, named);
  expect_message(launch_noop(launch(), {.blocks = 0}), StatusCode::kInternal, named);
  // Nothing of it is left for the next call or for the caller's own checks.
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_TRUE(launch_noop(launch(), {.threads = 32}).ok());
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(LaunchErrors, EveryAttributeReachesTheLaunch) {
  const cuda::DeviceProperties* device = nullptr;
  ASSERT_TRUE(cuda::device_properties(0, &device).ok());
  EXPECT_TRUE(launch_noop(launch(), {.blocks = 4, .threads = 64, .shared_bytes = 64 << 10}).ok());
  if (device->major >= 9) {
    EXPECT_TRUE(launch_noop(launch(), {.blocks = 4, .threads = 64, .after_prologue = true}).ok());
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(LaunchErrors, AnErrorOfSomebodyElseIsNotOurs) {
  EXPECT_NE(cudaMalloc(nullptr, 1), cudaSuccess);  // leaves an error behind
  EXPECT_TRUE(launch_noop(launch(), {.threads = 32}).ok());
  cudaGetLastError();
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST_F(LaunchErrors, AStreamIsAskedForItsDevice) {
  const TestStream stream;  // of cuda:0
  EXPECT_TRUE(cuda::check_stream("gmm", stream, 0).ok());
  expect_message(cuda::check_stream("gmm", stream, 1), StatusCode::kInvalid,
                 "gmm: options.stream belongs to cuda:0, expected a stream of cuda:1");
}

/// A grid without blocks is refused by the driver, so nothing runs.
class HopperLaunchErrors : public HopperTest {
 protected:
  static constexpr int64_t kM = 64, kK = 128, kN = 256;

  static void expect_named(const Status& status, std::string_view kernel) {
    expect_message(status, StatusCode::kInternal,
                   text("gmm: kernel ", kernel, " failed to launch: "));
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << kernel;
  }

  void SetUp() override {
    HopperTest::SetUp();
    if (IsSkipped()) return;
    launch.op = "gmm";
    ASSERT_TRUE(cuda::device_properties(0, &launch.device).ok());
    launch.sm_count = 0;
    groups.m = kM;
    groups.num_groups = groups.num_local = 1;
  }

  cuda::Launch launch;
  cuda::GroupInputs groups;
  GpuArray x{DType::kBF16, {kM, kK}}, w{DType::kBF16, {kK, kN}}, y{DType::kBF16, {kM, kN}};
};

TEST_F(HopperLaunchErrors, NameTheGmmKernel) {
  for (size_t shape = 0; shape < sm90::kGmmShapes.size(); ++shape) {
    for (const sm90::ElementKind element : {sm90::ElementKind::kBf16, sm90::ElementKind::kF16}) {
      sm90::GmmCall call;
      call.element = element;
      call.transposed_rhs = false;
      call.m = kM;
      call.n = kN;
      call.k = kK;
      call.lhs = x.view().data;
      call.lhs_stride = kK;
      call.rhs = w.view().data;
      call.rhs_row_stride = kN;
      call.out = y.view().data;
      call.out_stride = kN;
      call.groups = groups;
      call.epilogue.out = element;
      const auto kind = static_cast<sm90::GmmShapeKind>(shape);
      expect_named(launch_gmm(launch, call, {.shape = kind, .ctas = 0}), facts_of(kind).name);
    }
  }
}

TEST_F(HopperLaunchErrors, NameTheTgmmKernel) {
  for (const bool reads_c : {false, true}) {
    sm90::TgmmCall call;
    call.k = kK;
    call.n = kN;
    call.lhs = x.view().data;
    call.lhs_stride = kK;
    call.rhs = y.view().data;
    call.rhs_stride = kN;
    call.out.base = w.view().data;
    call.out.group_stride = kK * kN;
    call.out.row_stride = kN;
    call.c = call.out;
    call.groups = groups;
    expect_named(launch_tgmm(launch, call, reads_c, {}), sm90::kTgmmShapes[reads_c ? 1 : 0].name);
  }
}

/// Needs no GPU: a device is described by its properties.
TEST(OldDevices, AreRefusedWithTheReason) {
  const cuda::DeviceProperties turing{.name = "Turing", .major = 7, .minor = 5};
  for (const plan::Op op : {plan::Op::kGmm, plan::Op::kTgmm}) {
    plan::Problem problem;
    problem.op = op;
    problem.lhs.dtype = problem.rhs.dtype = problem.out.dtype = DType::kBF16;
    problem.compute = DType::kF32;
    std::string reasons;
    for (const cuda::KernelFamily* family : cuda::families()) {
      const Status status = family->supports(problem, turing);
      EXPECT_EQ(status.code(), StatusCode::kUnsupported) << family->kernels().front();
      reasons += status.message() + "\n";
    }
    EXPECT_NE(reasons.find("needs compute capability 8.0, Turing has 7.5"), std::string::npos)
        << reasons;
  }
}

/// Every operand of every op, given as memory of the host.
class HostPointers : public GpuBackendTest {
 protected:
  static constexpr int64_t kM = 64, kK = 32, kN = 48, kGroups = 2;

  void SetUp() override {
    GpuBackendTest::SetUp();
    if (IsSkipped()) return;
    const cuda::DeviceProperties* device = nullptr;
    ASSERT_TRUE(cuda::device_properties(0, &device).ok());
    if (device->reads_host_memory) GTEST_SKIP() << "kernels of this device may read host memory";
    for (GpuArray* array : {&x, &w, &bias, &scale, &c}) array->fill_random(1);
    sizes.set({30, 34});
  }

  void expect_refused(const Status& status, const std::string& argument) {
    expect_message(status, StatusCode::kInvalid, argument + ".data is a host pointer");
    y.download();
    EXPECT_TRUE(y.unchanged()) << argument;
  }

  GpuArray x{DType::kBF16, {kM, kK}}, w{DType::kBF16, {kGroups, kK, kN}};
  GpuArray y{DType::kF32, {kM, kN}}, c{DType::kF32, {kM, kN}};
  GpuArray bias{DType::kF32, {kGroups, kN}}, scale{DType::kF32, {kM}};
  GpuArray alpha{DType::kF32, {kGroups}}, sizes{DType::kI64, {kGroups}};
  GpuArray offset{DType::kI64, {1}};
  std::vector<char> host = std::vector<char>(1 << 16);
};

TEST_P(HostPointers, OfGmmAreRefused) {
  const auto call = [&] {
    GmmArgs args{.lhs = x.view(), .rhs = w.view(), .group_sizes = sizes.sizes(), .out = y.view()};
    args.bias = GroupedTensor::vectors(bias.view());
    args.bias_scale = args.row_scale = scale.view();
    args.c = c.view();
    args.beta = 1.0;
    return args;
  };
  const auto with = [&](auto change) {
    GmmArgs args = call();
    change(args);
    return gmm(context, args);
  };
  expect_refused(with([&](GmmArgs& a) { a.out.data = host.data(); }), "out");
  expect_refused(with([&](GmmArgs& a) { a.c.data = host.data(); }), "c");
  expect_refused(with([&](GmmArgs& a) { a.bias.data = host.data(); }), "bias");
  expect_refused(with([&](GmmArgs& a) { a.bias_scale.data = host.data(); }), "bias_scale");
  expect_refused(with([&](GmmArgs& a) { a.row_scale.data = host.data(); }), "row_scale");
  expect_refused(with([&](GmmArgs& a) {
                   a.alpha = TensorView::contiguous(host.data(), DType::kF32, {kGroups}, kGpu);
                 }),
                 "alpha");
  expect_refused(
      with([&](GmmArgs& a) { a.group_offset = GroupOffset(host.data(), DType::kI64, kGpu); }),
      "group_offset");
  expect_refused(with([&](GmmArgs& a) {
                   a.options.workspace = host.data();
                   a.options.workspace_size_bytes = host.size();
                 }),
                 "options.workspace");
}

TEST_P(HostPointers, OfTgmmGroupedGemmAndBiasGradAreRefused) {
  GpuArray grad(DType::kF32, {kGroups, kK, kN});
  TensorView bad = grad.view();
  bad.data = host.data();
  expect_refused(
      tgmm(context, {.lhs = x.view(), .rhs = y.view(), .group_sizes = sizes.sizes(), .out = bad}),
      "out");
  TensorView bad_x = x.view();
  bad_x.data = host.data();
  expect_refused(
      tgmm(context,
           {.lhs = bad_x, .rhs = y.view(), .group_sizes = sizes.sizes(), .out = grad.view()}),
      "lhs");
  GpuArray a(DType::kBF16, {kGroups, kM / 2, kK}), d(DType::kF32, {kGroups, kM / 2, kN});
  TensorView bad_w = w.view();
  bad_w.data = host.data();
  expect_message(grouped_gemm(context, {.a = a.view(), .b = bad_w, .d = d.view()}),
                 StatusCode::kInvalid, ".data is a host pointer");
  TensorView bad_dy = y.view();
  bad_dy.data = host.data();
  expect_refused(bias_grad(context, {.dy = bad_dy,
                                     .group_sizes = sizes.sizes(),
                                     .dbias = GroupedTensor::vectors(bias.view())}),
                 "dy");
}

INSTANTIATE_TEST_SUITE_P(All, HostPointers, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
