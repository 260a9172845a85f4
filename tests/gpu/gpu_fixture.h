// What the GPU's own tests share: arrays on the device with a copy on the host, and the reference
// backend's answer to the same call.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cadre/cadre.h"
#include "core/convert.h"
#include "tests/gpu/device_memory.h"
#include "tests/support/subjects.h"
#include "verify/random.h"

namespace cadre::tests {

inline constexpr Device kGpu{DeviceKind::kCuda, 0};

/// Reports itself as skipped, with the reason, where there is no GPU.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

/// Needs a GPU with Hopper kernels.
class HopperTest : public GpuTest {
 protected:
  void SetUp() override {
    if (const std::string reason = why_unavailable("sm90"); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

/// Runs over every name of backend_names(): the kernels that are chosen by themselves, and the
/// portable ones alone.
class GpuBackendTest : public GpuTest, public testing::WithParamInterface<std::string> {
 protected:
  static ContextOptions options() { return BackendUnderTest::options_for(GetParam()); }

  Context context{options()};
};

inline std::string backend_of(const testing::TestParamInfo<std::string>& info) {
  return info.param;
}

/// Elements of one type between two guard zones, on the device and on the host. Memory is taken at
/// the first use, so that a fixture can hold arrays where there is no GPU.
class GpuArray {
 public:
  GpuArray(DType dtype, std::vector<int64_t> shape) : dtype_(dtype), shape_(std::move(shape)) {}

  int64_t count() const {
    int64_t product = 1;
    for (int64_t dim : shape_) product *= dim;
    return product;
  }

  void fill_random(uint64_t seed) {
    verify::Random random(seed);
    for (int64_t i = 0; i < count(); ++i) store(i, random.uniform(-1, 1));
    buffer().upload();
  }
  void store(int64_t index, double value) {
    if (is_integer(dtype_)) return store_integer(index, static_cast<int64_t>(value));
    store_rounded(buffer().before(), dtype_, index, value);
  }
  /// Integers of any type.
  void set(const std::vector<int64_t>& values) {
    for (size_t i = 0; i < values.size(); ++i) store_integer(static_cast<int64_t>(i), values[i]);
    buffer().upload();
  }
  void upload() { buffer().upload(); }
  void download() { buffer().download(); }
  double after(int64_t index) const { return load_as_double(buffer().after(), dtype_, index); }
  double before(int64_t index) const { return load_as_double(buffer().before(), dtype_, index); }
  bool guards_intact() const {
    int64_t offset = 0;
    return !buffer().first_change(std::vector<bool>(buffer().size_bytes(), true), &offset);
  }
  bool unchanged() const { return buffer().unchanged(); }
  bool same_after(const GpuArray& other) const {
    return buffer().all_after() == other.buffer().all_after();
  }

  void* data() const { return buffer().data(); }
  DType dtype() const { return dtype_; }
  /// On the device, or its host copy as it was uploaded.
  TensorView view() const { return view_at(buffer().data(), kGpu); }
  TensorView host_view() { return view_at(buffer().before(), {}); }
  GroupSizes sizes() const { return groups(buffer().data(), kGpu); }
  GroupSizes host_sizes() { return groups(buffer().before(), {}); }
  /// Whether sizes() are the ends of groups.
  void set_kind(GroupSizesKind kind) { kind_ = kind; }

 private:
  void store_integer(int64_t index, int64_t value) {
    const size_t size = size_of(dtype_);  // little-endian: the low bytes of any integer
    std::memcpy(buffer().before() + static_cast<size_t>(index) * size, &value, size);
  }

  GroupSizes groups(const void* data, Device device) const {
    GroupSizes result(data, dtype_, count(), device);
    result.kind = kind_;
    return result;
  }

  TensorView view_at(void* data, Device device) const {
    switch (shape_.size()) {
      case 1:
        return TensorView::contiguous(data, dtype_, {shape_[0]}, device);
      case 2:
        return TensorView::contiguous(data, dtype_, {shape_[0], shape_[1]}, device);
      default:
        return TensorView::contiguous(data, dtype_, {shape_[0], shape_[1], shape_[2]}, device);
    }
  }

  verify::GuardedBuffer& buffer() const {
    if (!buffer_) {
      buffer_ = std::make_unique<verify::GuardedBuffer>(
          device_memory(), static_cast<size_t>(count()) * size_of(dtype_),
          verify::poison_of(dtype_));
      buffer_->upload();
    }
    return *buffer_;
  }

  DType dtype_;
  std::vector<int64_t> shape_;
  GroupSizesKind kind_ = GroupSizesKind::kSizes;
  mutable std::unique_ptr<verify::GuardedBuffer> buffer_;
};

/// Values of i32 or i64 that are neither -1 nor the index of one of `limit` rows. The last two of
/// i64 are such an index in their lower 32 bits.
inline std::vector<int64_t> bad_rows(DType dtype, int64_t limit) {
  std::vector<int64_t> values = {-2, limit, limit + 7, INT32_MAX, INT32_MIN};
  if (dtype == DType::kI64) {
    constexpr int64_t kTwo32 = int64_t{1} << 32;
    values.insert(values.end(), {int64_t{INT32_MAX} + 1, INT64_MAX, INT64_MIN, kTwo32, 3 - kTwo32});
  }
  return values;
}

/// `count` indices below `limit`; every seventh is `bad`.
inline std::vector<int64_t> rows_with(int64_t bad, int64_t count, int64_t limit) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(i % 7 == 3 ? bad : i * 13 % limit);
  return indices;
}

inline Context reference_context() {
  ContextOptions options;
  options.backend = "reference";
  return Context(options);
}

/// The portable kernels alone.
inline Context portable_context() { return Context(BackendUnderTest::options_for("cuda_sm80")); }

/// `got` holds the device's result (downloaded), `expected` the reference's in its host copy.
inline void expect_close(const GpuArray& got, const GpuArray& expected, double tolerance,
                         const std::string& what) {
  for (int64_t i = 0; i < got.count(); ++i) {
    const double a = got.after(i);
    const double b = expected.before(i);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (std::abs(a - b) <= tolerance) continue;
    ADD_FAILURE() << what << ": element " << i << " = " << a << ", expected " << b;
    return;
  }
}

/// A stream of its own.
class TestStream {
 public:
  TestStream() { cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking); }
  ~TestStream() { cudaStreamDestroy(stream_); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor)

 private:
  cudaStream_t stream_ = nullptr;
};

/// Captures `calls` on the stream. Null, and a test failure, when a call or the capture fails.
inline cudaGraphExec_t capture(cudaStream_t stream, const std::function<Status()>& calls) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const Status status = calls();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  if (graph == nullptr || !status.ok()) return nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  cudaGraphDestroy(graph);
  return executable;
}

}  // namespace cadre::tests
