// quantize on the device alone: graphs replayed with other sizes, bad sizes and bad indices.
#include "cadre/quantize.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 300;
constexpr int64_t kK = 136;
constexpr int64_t kGroups = 5;

/// A call on the device and the same on the reference, which write the same bits.
class QuantizeGpu : public GpuBackendTest {
 protected:
  QuantizeGpu() : reference(reference_context()) {}

  QuantizeArgs args(bool device, ScaleMode mode) {
    const auto view = [device](GpuArray& array) {
      return device ? array.view() : array.host_view();
    };
    QuantizeArgs call{.x = view(x)};
    call.group_sizes = device ? sizes.sizes() : sizes.host_sizes();
    const bool rows_only = mode == ScaleMode::kRow;
    call.rows = ScaledTensor(view(rows), Scales(mode, view(rows_only ? row_f32 : row_blocks)));
    call.columns = ScaledTensor::column_wise(
        view(columns), Scales(mode, view(rows_only ? column_f32 : column_blocks)));
    if (device) call.options.stream = static_cast<cudaStream_t>(stream);
    return call;
  }

  std::vector<GpuArray*> outputs(ScaleMode mode) {
    const bool rows_only = mode == ScaleMode::kRow;
    return {&rows, &columns, rows_only ? &row_f32 : &row_blocks,
            rows_only ? &column_f32 : &column_blocks};
  }

  /// The device's outputs have every byte of the reference's.
  void expect_same_bits(ScaleMode mode, const std::string& what) {
    std::vector<std::vector<char>> poison;
    for (GpuArray* array : outputs(mode)) {
      array->download();
      EXPECT_TRUE(array->guards_intact()) << what;
      const auto* data = static_cast<const char*>(array->host_view().data);
      poison.emplace_back(data, data + bytes_of(*array));
    }
    const Status status = quantize(reference, args(false, mode));
    ASSERT_TRUE(status.ok()) << status.message();
    size_t i = 0;
    for (GpuArray* array : outputs(mode)) {
      int64_t different = 0;
      for (int64_t at = 0; at < array->count(); ++at) {
        const double got = array->after(at);
        const double expected = array->before(at);
        different += got != expected && !(std::isnan(got) && std::isnan(expected)) ? 1 : 0;
      }
      EXPECT_EQ(different, 0) << what << ", output " << i;
      std::memcpy(array->host_view().data, poison[i].data(), poison[i].size());
      ++i;
    }
  }

  static size_t bytes_of(const GpuArray& array) {
    return static_cast<size_t>(array.count()) * size_of(array.dtype());
  }

  Context reference;
  TestStream stream;
  GpuArray x{DType::kBF16, {kM, kK}};
  GpuArray sizes{DType::kI32, {kGroups}};
  GpuArray rows{DType::kE4M3, {kM, kK}};
  GpuArray columns{DType::kE5M2, {kK, column_capacity(kM, kGroups)}};
  GpuArray row_blocks{DType::kF32, {kM, 2}};
  GpuArray column_blocks{DType::kF32, {column_scale_capacity(kM, kGroups, 128), kK}};
  GpuArray row_f32{DType::kF32, {kM}};
  GpuArray column_f32{DType::kF32, {kGroups, kK}};
};

TEST_P(QuantizeGpu, ReplaysWithOtherSizes) {
  const std::vector<std::vector<int64_t>> replays = {{60, 60, 60, 60, 60}, {0, 0, 0, 0, 0},
                                                     {0, 0, 300, 0, 0},    {1, 127, 128, 0, 3},
                                                     {129, 0, 64, 65, 40}, {0, 7, 0, 290, 3}};
  x.fill_random(1);
  for (const ScaleMode mode : {ScaleMode::kBlock128, ScaleMode::kRow}) {
    const auto call = [&] { return quantize(context, args(true, mode)); };
    sizes.set({10, 20, 30, 40, 50});
    const Status first = call();
    ASSERT_TRUE(first.ok()) << first.message();
    ASSERT_TRUE(context.check(kGpu, stream).ok());
    const cudaGraphExec_t graph = capture(stream, call);
    ASSERT_NE(graph, nullptr);
    for (const std::vector<int64_t>& of_replay : replays) {
      sizes.set(of_replay);
      for (GpuArray* array : outputs(mode)) array->upload();
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
      const Status met = context.check(kGpu, stream);
      ASSERT_TRUE(met.ok()) << met.message();
      expect_same_bits(mode, "sizes " + testing::PrintToString(of_replay));
    }
    cudaGraphExecDestroy(graph);
  }
}

TEST_P(QuantizeGpu, GroupsFromABadSizeOnAreTail) {
  x.fill_random(2);
  for (const int64_t bad : {int64_t{-1}, kM + 1, int64_t{INT32_MIN}, int64_t{INT32_MAX}}) {
    sizes.set({40, 130, bad, 20, 1});
    for (GpuArray* array : outputs(ScaleMode::kBlock128)) array->upload();
    ASSERT_TRUE(quantize(context, args(true, ScaleMode::kBlock128)).ok());
    EXPECT_EQ(context.check(kGpu, stream).code(), StatusCode::kInvalid);
    sizes.set({40, 130, 0, 0, 0});  // what the reference is asked
    expect_same_bits(ScaleMode::kBlock128, "bad size " + std::to_string(bad));
  }
}

TEST_P(QuantizeGpu, BadIndicesGiveRowsOfZeros) {
  x.fill_random(3);
  sizes.set({300, 0, 0, 0, 0});
  GpuArray source{DType::kI64, {kM}};
  const int64_t hostile[] = {kM, -2, INT64_MAX, INT64_MIN, kM + 7};
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < kM; ++i) {
    indices.push_back(i % 7 == 3 ? hostile[i / 7 % 5] : i * 13 % kM);
  }
  source.set(indices);
  rows.upload();
  QuantizeArgs call = args(true, ScaleMode::kBlock128);
  call.source_row = source.view();
  call.columns = {};
  ASSERT_TRUE(quantize(context, call).ok());
  EXPECT_EQ(context.check(kGpu, stream).code(), StatusCode::kInvalid);
  rows.download();
  EXPECT_TRUE(rows.guards_intact());
  for (int64_t i = 3; i < kM; i += 7) {
    for (int64_t col = 0; col < kK; ++col) ASSERT_EQ(rows.after(i * kK + col), 0) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizeGpu, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
