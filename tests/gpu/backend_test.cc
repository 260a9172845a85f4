// The CUDA backend beyond the contract suites: clear errors before a launch, streams, threads, and
// offsets past 2^31 elements.
#include <cmath>
#include <cstring>
#include <thread>

#include "cuda/device.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 190;
constexpr int64_t kK = 64;
constexpr int64_t kN = 96;
constexpr int64_t kGroups = 3;

class BackendTest : public GpuBackendTest {
 protected:
  BackendTest()
      : lhs(DType::kBF16, {kM, kK}),
        rhs(DType::kBF16, {kGroups, kK, kN}),
        out(DType::kF32, {kM, kN}),
        sizes(DType::kI32, {kGroups}) {}

  void SetUp() override {
    GpuBackendTest::SetUp();
    if (IsSkipped()) return;
    lhs.fill_random(1);
    rhs.fill_random(2);
    sizes.set({100, 1, 80});
  }

  GmmArgs args() const {
    return {.lhs = lhs.view(), .rhs = rhs.view(), .group_sizes = sizes.sizes(), .out = out.view()};
  }

  void expect_invalid(const Status& status, const char* text) {
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    out.download();
    EXPECT_TRUE(out.unchanged());
  }

  GpuArray lhs, rhs, out, sizes;
};

TEST_P(BackendTest, HostPointersAreRefused) {
  const cuda::DeviceProperties* device = nullptr;
  ASSERT_TRUE(cuda::device_properties(0, &device).ok());
  if (device->reads_host_memory) GTEST_SKIP() << "kernels of this device may read host memory";
  std::vector<uint16_t> host(kM * kK);
  GmmArgs call = args();
  call.lhs.data = host.data();
  expect_invalid(gmm(context, call), "lhs.data is a host pointer");
  call = args();
  call.rhs.data = host.data();
  expect_invalid(gmm(context, call), "rhs.data is a host pointer");
  call = args();
  const std::vector<int32_t> host_sizes = {100, 1, 80};
  call.group_sizes.data = host_sizes.data();
  expect_invalid(gmm(context, call), "group_sizes.data is a host pointer");
  call = args();
  std::vector<void*> pointers(kGroups, host.data());
  call.rhs = GroupedTensor::list(pointers.data(), kGroups,
                                 TensorView::contiguous(nullptr, DType::kBF16, {kK, kN}, kGpu));
  expect_invalid(gmm(context, call), "rhs.data is a host pointer");
}

TEST_P(BackendTest, TooSmallAWorkspaceIsRefused) {
  const auto refuse = [this](auto call, auto size_of_call, auto op) {
    size_t needed = 0;
    ASSERT_TRUE(size_of_call(context, call, &needed).ok());
    ASSERT_GT(needed, size_t{0});
    void* workspace = device_memory().allocate(needed);
    call.options.workspace = workspace;
    call.options.workspace_size_bytes = needed - 1;
    expect_invalid(op(context, call), "options.workspace_size_bytes");
    call.options.workspace_size_bytes = needed;
    const Status enough = op(context, call);
    EXPECT_TRUE(enough.ok()) << enough.message();
    EXPECT_TRUE(context.check(kGpu).ok());
    device_memory().release(workspace);
    out.upload();  // untouched for the next op
  };
  refuse(args(), gmm_workspace_size, gmm);
  const TensorView rows = TensorView::contiguous(out.data(), DType::kF32, {kM, kN}, kGpu);
  GpuArray x(DType::kF32, {kM, kK}), grad(DType::kF32, {kGroups, kK, kN});
  GpuArray dbias(DType::kF32, {kGroups, kN});
  x.fill_random(5);
  refuse(TgmmArgs{.lhs = x.view(), .rhs = rows, .group_sizes = sizes.sizes(), .out = grad.view()},
         tgmm_workspace_size, tgmm);
  refuse(
      BiasGradArgs{
          .dy = rows, .group_sizes = sizes.sizes(), .dbias = GroupedTensor::vectors(dbias.view())},
      bias_grad_workspace_size, bias_grad);
  // Three groups of 60 rows.
  constexpr int64_t kRows = 60;
  refuse(
      GroupedGemmArgs{
          .a = TensorView::contiguous(lhs.data(), DType::kBF16, {kGroups, kRows, kK}, kGpu),
          .b = rhs.view(),
          .d = TensorView::contiguous(out.data(), DType::kF32, {kGroups, kRows, kN}, kGpu)},
      grouped_gemm_workspace_size, grouped_gemm);
}

TEST_P(BackendTest, WorkspaceIsNeverOverrun) {
  // Host sizes and host lists are what takes most room.
  constexpr int64_t kMany = 4096;
  GpuArray weights(DType::kBF16, {1, kK, kN});
  weights.fill_random(3);
  std::vector<void*> pointers(kMany, weights.data());
  std::vector<int64_t> host_sizes(kMany, 0);
  host_sizes[7] = 100;
  host_sizes[4095] = 90;
  GmmArgs call = args();
  call.rhs = GroupedTensor::list(pointers.data(), kMany,
                                 TensorView::contiguous(nullptr, DType::kBF16, {kK, kN}, kGpu));
  call.group_sizes = GroupSizes(host_sizes.data(), DType::kI64, kMany);
  size_t needed = 0;
  ASSERT_TRUE(gmm_workspace_size(context, call, &needed).ok());
  verify::GuardedBuffer workspace(device_memory(), needed, std::byte{0x5a});
  workspace.upload();
  call.options.workspace = workspace.data();
  call.options.workspace_size_bytes = needed;
  const Status status = gmm(context, call);
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(context.check(kGpu).ok());
  workspace.download();
  int64_t offset = 0;
  EXPECT_FALSE(workspace.first_change(std::vector<bool>(needed, true), &offset)) << offset;
}

TEST_P(BackendTest, AMissingDeviceIsAnErrorWithTheReason) {
  GmmArgs call = args();
  const Device far{DeviceKind::kCuda, 99};
  call.lhs.device = call.rhs.device = call.out.device = call.group_sizes.device = far;
  const Status status = gmm(context, call);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("there is no cuda:99"), std::string::npos) << status.message();
}

TEST_P(BackendTest, AStreamOfAnotherDeviceIsRefused) {
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "needs two GPUs, here is one";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  GmmArgs call = args();
  call.options.stream = other;
  expect_invalid(gmm(context, call), "options.stream belongs to cuda:1");
  cudaStreamDestroy(other);
}

TEST_P(BackendTest, AnUnknownKernelIsRefused) {
  GmmArgs call = args();
  call.options.config = "sm80/nothing";
  expect_invalid(gmm(context, call), "options.config = \"sm80/nothing\"");
}

TEST_P(BackendTest, ThreadsAndStreamsShareAContext) {
  struct Job {
    TestStream stream;
    GpuArray lhs{DType::kBF16, {kM, kK}}, rhs{DType::kBF16, {kGroups, kK, kN}};
    GpuArray out{DType::kF32, {kM, kN}}, sizes{DType::kI32, {kGroups}};
    std::vector<Status> statuses;
  };
  std::vector<std::unique_ptr<Job>> jobs;
  for (int i = 0; i < 4; ++i) {
    auto job = std::make_unique<Job>();
    job->lhs.fill_random(10 + static_cast<uint64_t>(i));
    job->rhs.fill_random(20 + static_cast<uint64_t>(i));
    job->sizes.set({int64_t{10} * i, 50, 100});
    jobs.push_back(std::move(job));
  }
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, &jobs, t] {
      // Threads 0 and 1 share a stream, as do 2 and 3.
      Job& job = *jobs[t];
      for (int i = 0; i < 50; ++i) {
        CallOptions options;
        options.stream = static_cast<cudaStream_t>(jobs[t / 2 * 2]->stream);
        job.statuses.push_back(gmm(context, {.lhs = job.lhs.view(),
                                             .rhs = job.rhs.view(),
                                             .group_sizes = job.sizes.sizes(),
                                             .out = job.out.view(),
                                             .options = options}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  Context reference = reference_context();
  for (auto& job : jobs) {
    for (const Status& status : job->statuses) ASSERT_TRUE(status.ok()) << status.message();
    job->out.download();
    ASSERT_TRUE(gmm(reference, {.lhs = job->lhs.host_view(),
                                .rhs = job->rhs.host_view(),
                                .group_sizes = job->sizes.host_sizes(),
                                .out = job->out.host_view()})
                    .ok());
    expect_close(job->out, job->out, 1e-4, "shared context");
  }
}

/// Memory that isn't cleared or copied as a whole; null when the device has too little.
class LargeBlock {
 public:
  explicit LargeBlock(size_t size_bytes) {
    if (cudaMalloc(&data_, size_bytes) != cudaSuccess) {
      cudaGetLastError();
      data_ = nullptr;
    }
  }
  ~LargeBlock() { cudaFree(data_); }
  LargeBlock(const LargeBlock&) = delete;
  LargeBlock& operator=(const LargeBlock&) = delete;
  uint16_t* data() const { return static_cast<uint16_t*>(data_); }

 private:
  void* data_ = nullptr;
};

void put(uint16_t* at, double value) {
  const uint16_t bits = float_to_bf16(static_cast<float>(value));
  ASSERT_EQ(cudaMemcpy(at, &bits, sizeof(bits), cudaMemcpyHostToDevice), cudaSuccess);
}

double get(const uint16_t* at) {
  uint16_t bits = 0;
  EXPECT_EQ(cudaMemcpy(&bits, at, sizeof(bits), cudaMemcpyDeviceToHost), cudaSuccess);
  return static_cast<double>(bf16_to_float(bits));
}

constexpr int64_t kHuge = (int64_t{1} << 31) + 24;  // elements; a multiple of 8: vector loads

TEST_P(BackendTest, GmmOffsetsPastTwoToThe31) {
  // Rows of lhs and out, and groups of rhs, each more than 2^31 elements apart.
  constexpr int64_t kRows = 4, kDepth = 8, kCols = 8;
  const LargeBlock x((3 * kHuge + kDepth) * 2), y((3 * kHuge + kCols) * 2);
  const LargeBlock w((kHuge + kDepth * kCols) * 2);
  if (!x.data() || !y.data() || !w.data()) GTEST_SKIP() << "needs 30 GB of free device memory";
  std::vector<double> values(kRows * kDepth);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kDepth; ++j) {
      values[static_cast<size_t>(i * kDepth + j)] = static_cast<double>(i + 2 * j - 5);
      put(x.data() + i * kHuge + j, values[static_cast<size_t>(i * kDepth + j)]);
    }
  }
  const auto weight = [](int64_t g, int64_t i, int64_t j) {
    return static_cast<double>((g + 1) * (i - j + 1));
  };
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t i = 0; i < kDepth; ++i) {
      for (int64_t j = 0; j < kCols; ++j)
        put(w.data() + g * kHuge + i * kCols + j, weight(g, i, j));
    }
  }
  const int64_t rows[2] = {1, 3};
  const Status status =
      gmm(context,
          {.lhs = TensorView::strided(x.data(), DType::kBF16, {kRows, kDepth}, {kHuge, 1}, kGpu),
           .rhs = TensorView::strided(w.data(), DType::kBF16, {2, kDepth, kCols}, {kHuge, kCols, 1},
                                      kGpu),
           .group_sizes = {rows, DType::kI64, 2},
           .out = TensorView::strided(y.data(), DType::kBF16, {kRows, kCols}, {kHuge, 1}, kGpu)});
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(context.check(kGpu).ok());
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kCols; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < kDepth; ++l) {
        sum += values[static_cast<size_t>(i * kDepth + l)] * weight(i > 0, l, j);
      }
      ASSERT_EQ(get(y.data() + i * kHuge + j),
                static_cast<double>(bf16_to_float(float_to_bf16(static_cast<float>(sum)))))
          << i << ", " << j;
    }
  }
}

TEST_P(BackendTest, TgmmOffsetsPastTwoToThe31) {
  constexpr int64_t kRows = 4, kDepth = 8, kCols = 16;
  const LargeBlock x((3 * kHuge + kDepth) * 2), y((3 * kHuge + kCols) * 2);
  const LargeBlock w((kHuge + kDepth * kCols) * 2);
  if (!x.data() || !y.data() || !w.data()) GTEST_SKIP() << "needs 30 GB of free device memory";
  const auto left = [](int64_t r, int64_t i) { return static_cast<double>(r + i - 3); };
  const auto right = [](int64_t r, int64_t j) { return static_cast<double>(2 * r - j + 4); };
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t i = 0; i < kDepth; ++i) put(x.data() + r * kHuge + i, left(r, i));
    for (int64_t j = 0; j < kCols; ++j) put(y.data() + r * kHuge + j, right(r, j));
  }
  const int64_t rows[2] = {3, 1};
  const Status status =
      tgmm(context,
           {.lhs = TensorView::strided(x.data(), DType::kBF16, {kRows, kDepth}, {kHuge, 1}, kGpu),
            .rhs = TensorView::strided(y.data(), DType::kBF16, {kRows, kCols}, {kHuge, 1}, kGpu),
            .group_sizes = {rows, DType::kI64, 2},
            .out = TensorView::strided(w.data(), DType::kBF16, {2, kDepth, kCols},
                                       {kHuge, kCols, 1}, kGpu)});
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(context.check(kGpu).ok());
  for (int64_t g = 0; g < 2; ++g) {
    for (int64_t i = 0; i < kDepth; ++i) {
      for (int64_t j = 0; j < kCols; ++j) {
        double sum = 0;
        for (int64_t r = g == 0 ? 0 : 3; r < (g == 0 ? 3 : 4); ++r) sum += left(r, i) * right(r, j);
        ASSERT_EQ(get(w.data() + g * kHuge + i * kCols + j), sum) << g << ", " << i << ", " << j;
      }
    }
  }
}

TEST_P(BackendTest, MoreElementsThanTwoToThe31InOneTensor) {
  // lhs [m, k] without gaps has more than 2^31 elements; its last rows are checked.
  constexpr int64_t kDepth = 4096, kCols = 8;
  constexpr int64_t kRows = (int64_t{1} << 31) / kDepth + 300;
  const LargeBlock x(kRows * kDepth * 2), y(kRows * kCols * 2), w(2 * kDepth * kCols * 2);
  if (!x.data() || !y.data() || !w.data()) GTEST_SKIP() << "needs 5 GB of free device memory";
  ASSERT_EQ(cudaMemset(x.data(), 0, kRows * kDepth * 2), cudaSuccess);
  ASSERT_EQ(cudaMemset(w.data(), 0, 2 * kDepth * kCols * 2), cudaSuccess);
  for (int64_t j = 0; j < kCols; ++j) {
    put(w.data() + kDepth * kCols + (kDepth - 1) * kCols + j, static_cast<double>(j + 1));
  }
  for (int64_t r = kRows - 10; r < kRows; ++r) {
    put(x.data() + r * kDepth + kDepth - 1, static_cast<double>(r - kRows));
  }
  const int64_t rows[2] = {kRows - 10, 10};
  const Status status =
      gmm(context, {.lhs = TensorView::contiguous(x.data(), DType::kBF16, {kRows, kDepth}, kGpu),
                    .rhs = TensorView::contiguous(w.data(), DType::kBF16, {2, kDepth, kCols}, kGpu),
                    .group_sizes = {rows, DType::kI64, 2},
                    .out = TensorView::contiguous(y.data(), DType::kBF16, {kRows, kCols}, kGpu)});
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_TRUE(context.check(kGpu).ok());
  for (int64_t r = kRows - 12; r < kRows; ++r) {
    for (int64_t j = 0; j < kCols; ++j) {
      const double expected =
          r < kRows - 10 ? 0 : static_cast<double>(r - kRows) * static_cast<double>(j + 1);
      ASSERT_EQ(get(y.data() + r * kCols + j), expected) << r << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, BackendTest, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
