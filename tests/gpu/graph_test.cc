// Every op is captured once and replayed with other group sizes, among them all empty and
// one-takes-all, and with other rows where they lie by index; each replay is compared with the
// reference.
#include <cmath>
#include <cstring>

#include "cadre/grouped_linear.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 300;
constexpr int64_t kK = 72;
constexpr int64_t kN = 136;
constexpr int64_t kGroups = 5;
constexpr double kTolerance = 2e-4;  // f32 sums of at most 300 terms below 1

const std::vector<std::vector<int64_t>> kReplays = {{60, 60, 60, 60, 60}, {0, 0, 0, 0, 0},
                                                    {0, 0, 300, 0, 0},    {1, 127, 128, 0, 3},
                                                    {129, 0, 64, 65, 40}, {0, 7, 0, 290, 3}};

class GraphTest : public GpuBackendTest {
 protected:
  GraphTest() : reference(reference_context()) {}

  struct Output {
    GpuArray& array;
    double tolerance = kTolerance;
  };

  /// Warms up, captures, then replays with each size vector and compares what comes out.
  void replay_all(GpuArray& sizes, GpuArray& out, const std::function<Status()>& call,
                  const std::function<Status()>& reference_call) {
    replay_all(sizes, std::vector<Output>{{out}}, call, reference_call);
  }
  void replay_all(GpuArray& sizes, const std::vector<Output>& outputs,
                  const std::function<Status()>& call,
                  const std::function<Status()>& reference_call) {
    sizes.set({10, 20, 30, 40, 50});
    const Status first = call();
    ASSERT_TRUE(first.ok()) << first.message();
    ASSERT_TRUE(context.check(kGpu, stream).ok());  // it has finished before anything is refilled
    const cudaGraphExec_t graph = capture(stream, call);
    ASSERT_NE(graph, nullptr);
    for (const std::vector<int64_t>& rows : kReplays) {
      for (int repeat = 0; repeat < 2; ++repeat) {
        sizes.set(rows);
        if (other_inputs) other_inputs();
        for (const Output& out : outputs) out.array.upload();
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
        const Status met = context.check(kGpu, stream);
        ASSERT_TRUE(met.ok()) << met.message();
        std::vector<std::vector<char>> kept;
        for (const Output& out : outputs) {
          out.array.download();
          EXPECT_TRUE(out.array.guards_intact());
          kept.push_back(host_copy(out.array));
        }
        const Status expected = reference_call();
        ASSERT_TRUE(expected.ok()) << expected.message();
        for (size_t i = 0; i < outputs.size(); ++i) {
          expect_close(outputs[i].array, outputs[i].array, outputs[i].tolerance,
                       "output " + std::to_string(i) + ", sizes " + testing::PrintToString(rows) +
                           ", replay " + std::to_string(repeat));
          restore(outputs[i].array, kept[i]);
        }
      }
    }
    cudaGraphExecDestroy(graph);
  }

  /// The reference writes into the host copy; what was there is put back for the next upload.
  static std::vector<char> host_copy(GpuArray& array) {
    const auto* data = static_cast<const char*>(array.host_view().data);
    return {data, data + static_cast<size_t>(array.count()) * size_of(array.dtype())};
  }
  static void restore(GpuArray& array, const std::vector<char>& bytes) {
    std::memcpy(array.host_view().data, bytes.data(), bytes.size());
  }

  CallOptions on_stream() const {
    CallOptions options;
    options.stream = static_cast<cudaStream_t>(stream);
    return options;
  }

  /// Before each replay: indices of `limit` rows that are drawn anew, some of them -1.
  void draw_rows(GpuArray& index, int64_t limit) {
    const auto draw = [this, &index, limit] {
      std::vector<int64_t> rows;
      for (int64_t i = 0; i < index.count(); ++i) rows.push_back(random.between(-1, limit - 1));
      index.set(rows);
    };
    draw();
    other_inputs = draw;
  }

  Context reference;
  TestStream stream;
  verify::Random random{11};
  std::function<void()> other_inputs;  ///< called before each replay
};

TEST_P(GraphTest, GmmReplaysWithOtherSizes) {
  for (bool transposed : {false, true}) {
    GpuArray lhs(DType::kBF16, {kM, kK});
    GpuArray rhs(DType::kBF16, {kGroups, transposed ? kN : kK, transposed ? kK : kN});
    GpuArray out(DType::kF32, {kM, kN});
    GpuArray sizes(DType::kI32, {kGroups});
    lhs.fill_random(1);
    rhs.fill_random(2);
    replay_all(
        sizes, out,
        [&] {
          return gmm(context, {.lhs = lhs.view(),
                               .rhs = rhs.view(),
                               .group_sizes = sizes.sizes(),
                               .out = out.view(),
                               .transpose_rhs = transposed,
                               .options = on_stream()});
        },
        [&] {
          return gmm(reference, {.lhs = lhs.host_view(),
                                 .rhs = rhs.host_view(),
                                 .group_sizes = sizes.host_sizes(),
                                 .out = out.host_view(),
                                 .transpose_rhs = transposed});
        });
  }
}

TEST_P(GraphTest, GmmWithEveryOptionReplays) {
  GpuArray lhs(DType::kF16, {kM, kK});
  GpuArray rhs(DType::kF16, {kGroups, kN, kK});
  GpuArray out(DType::kF32, {kM, kN});
  GpuArray bias(DType::kF16, {kGroups, kN});
  GpuArray row_scale(DType::kF32, {kM});
  GpuArray bias_scale(DType::kF32, {kM});
  GpuArray alpha(DType::kF32, {kGroups});
  GpuArray sizes(DType::kI64, {kGroups});
  uint64_t seed = 3;
  for (GpuArray* array : {&lhs, &rhs, &out, &bias, &row_scale, &bias_scale, &alpha}) {
    array->fill_random(seed++);
  }
  const auto args = [&](bool device) {
    const auto view = [device](GpuArray& array) {
      return device ? array.view() : array.host_view();
    };
    GmmArgs call;
    call.lhs = view(lhs);
    call.rhs = view(rhs);
    call.group_sizes = device ? sizes.sizes() : sizes.host_sizes();
    call.out = view(out);
    call.transpose_rhs = true;
    call.alpha = view(alpha);
    call.accumulate = true;
    call.bias = GroupedTensor::vectors(view(bias));
    call.bias_scale = view(bias_scale);
    call.row_scale = view(row_scale);
    if (device) call.options = on_stream();
    return call;
  };
  replay_all(
      sizes, out, [&] { return gmm(context, args(true)); },
      [&] { return gmm(reference, args(false)); });
}

TEST_P(GraphTest, TgmmReplaysWithOtherSizes) {
  GpuArray lhs(DType::kBF16, {kM, kK});
  GpuArray rhs(DType::kBF16, {kM, kN});
  GpuArray out(DType::kF32, {kGroups, kK, kN});
  GpuArray sizes(DType::kI64, {kGroups});
  lhs.fill_random(1);
  rhs.fill_random(2);
  out.fill_random(3);
  for (bool accumulate : {false, true}) {
    replay_all(
        sizes, out,
        [&] {
          return tgmm(context, {.lhs = lhs.view(),
                                .rhs = rhs.view(),
                                .group_sizes = sizes.sizes(),
                                .out = out.view(),
                                .accumulate = accumulate,
                                .options = on_stream()});
        },
        [&] {
          return tgmm(reference, {.lhs = lhs.host_view(),
                                  .rhs = rhs.host_view(),
                                  .group_sizes = sizes.host_sizes(),
                                  .out = out.host_view(),
                                  .accumulate = accumulate});
        });
  }
}

constexpr int64_t kRowsInMemory = 90;

TEST_P(GraphTest, GmmReplaysWithOtherRows) {
  for (const DType index : {DType::kI32, DType::kI64}) {
    GpuArray lhs(DType::kBF16, {kRowsInMemory, kK});
    GpuArray rhs(DType::kBF16, {kGroups, kK, kN});
    GpuArray out(DType::kF32, {kM, kN});
    GpuArray sizes(DType::kI32, {kGroups});
    GpuArray rows(index, {kM});
    lhs.fill_random(1);
    rhs.fill_random(2);
    draw_rows(rows, kRowsInMemory);
    const auto call = [&](Context& on, bool device) {
      return gmm(on, {.lhs = device ? lhs.view() : lhs.host_view(),
                      .rhs = device ? rhs.view() : rhs.host_view(),
                      .group_sizes = device ? sizes.sizes() : sizes.host_sizes(),
                      .out = device ? out.view() : out.host_view(),
                      .lhs_rows = device ? rows.view() : rows.host_view(),
                      .options = device ? on_stream() : CallOptions{}});
    };
    replay_all(
        sizes, out, [&] { return call(context, true); }, [&] { return call(reference, false); });
  }
}

TEST_P(GraphTest, TgmmReplaysWithOtherRows) {
  for (const bool of_lhs : {true, false}) {
    GpuArray lhs(DType::kBF16, {of_lhs ? kRowsInMemory : kM, kK});
    GpuArray rhs(DType::kBF16, {of_lhs ? kM : kRowsInMemory, kN});
    GpuArray out(DType::kF32, {kGroups, kK, kN});
    GpuArray sizes(DType::kI32, {kGroups});
    GpuArray rows(of_lhs ? DType::kI64 : DType::kI32, {kM});
    lhs.fill_random(1);
    rhs.fill_random(2);
    draw_rows(rows, kRowsInMemory);
    const auto call = [&](Context& on, bool device) {
      const TensorView index = device ? rows.view() : rows.host_view();
      return tgmm(on, {.lhs = device ? lhs.view() : lhs.host_view(),
                       .rhs = device ? rhs.view() : rhs.host_view(),
                       .group_sizes = device ? sizes.sizes() : sizes.host_sizes(),
                       .out = device ? out.view() : out.host_view(),
                       .lhs_rows = of_lhs ? index : TensorView{},
                       .rhs_rows = of_lhs ? TensorView{} : index,
                       .options = device ? on_stream() : CallOptions{}});
    };
    replay_all(
        sizes, out, [&] { return call(context, true); }, [&] { return call(reference, false); });
  }
}

TEST_P(GraphTest, BiasGradReplaysWithOtherSizes) {
  GpuArray dy(DType::kBF16, {kM, kN});
  GpuArray out(DType::kF32, {kGroups, kN});
  GpuArray sizes(DType::kI32, {kGroups});
  dy.fill_random(1);
  replay_all(
      sizes, out,
      [&] {
        return bias_grad(context, {.dy = dy.view(),
                                   .group_sizes = sizes.sizes(),
                                   .dbias = GroupedTensor::vectors(out.view()),
                                   .options = on_stream()});
      },
      [&] {
        return bias_grad(reference, {.dy = dy.host_view(),
                                     .group_sizes = sizes.host_sizes(),
                                     .dbias = GroupedTensor::vectors(out.host_view())});
      });
}

TEST_P(GraphTest, GroupedGemmReplaysWithOtherDims) {
  // Rows of every group on the device; all matrices lie back to back in packed buffers.
  GpuArray a(DType::kBF16, {kM, kK});
  GpuArray b(DType::kBF16, {kGroups, kK, kN});
  GpuArray out(DType::kF32, {kM, kN});
  GpuArray sizes(DType::kI64, {kGroups});
  a.fill_random(1);
  b.fill_random(2);
  const auto args = [&](bool device) {
    const auto packed = [&](GpuArray& array, int64_t cols) {
      const Extent rows(device ? sizes.sizes() : sizes.host_sizes(), kM);
      return GroupedTensor::packed(device ? array.data() : array.host_view().data, array.dtype(),
                                   kGroups, rows, cols, array.count(), device ? kGpu : Device{});
    };
    GroupedGemmArgs call;
    call.a = packed(a, kK);
    call.b = device ? b.view() : b.host_view();
    call.d = packed(out, kN);
    if (device) call.options = on_stream();
    return call;
  };
  replay_all(
      sizes, out, [&] { return grouped_gemm(context, args(true)); },
      [&] { return grouped_gemm(reference, args(false)); });
}

TEST_P(GraphTest, DelayedWgradOfGroupedLinearReplays) {
  GpuArray x(DType::kBF16, {kM, kK});
  GpuArray dy(DType::kBF16, {kM, kN});
  GpuArray weight(DType::kBF16, {kGroups, kN, kK});
  GpuArray y(DType::kBF16, {kM, kN});
  GpuArray dx(DType::kBF16, {kM, kK});
  GpuArray main_grad(DType::kF32, {kGroups, kN, kK});
  GpuArray splits(DType::kI32, {kGroups});
  uint64_t seed = 5;
  for (GpuArray* array : {&x, &dy, &weight, &main_grad}) array->fill_random(seed++);
  const auto step = [&](Context& on, bool device) -> Status {
    const auto view = [device](GpuArray& array) {
      return device ? array.view() : array.host_view();
    };
    GroupedLinear layer({.weight = view(weight)},
                        {.delay_wgrad = true, .accumulate_into_main_grad = true});
    const CallOptions options = device ? on_stream() : CallOptions{};
    GroupedLinearSaved saved;
    Status status = layer.forward(on,
                                  {.x = view(x),
                                   .splits = device ? splits.sizes() : splits.host_sizes(),
                                   .y = view(y),
                                   .options = options},
                                  &saved);
    if (!status.ok()) return status;
    GroupedLinearBackwardArgs backward;
    backward.dy = view(dy);
    backward.dx = view(dx);
    backward.main_grad = MainGrad(view(main_grad));
    backward.options = options;
    status = layer.backward(on, saved, backward);
    return status.ok() ? layer.backward_dw(on, options) : status;
  };
  // y and dx are sums of at most 136 terms below 1, rounded to bf16: below 16, an ulp is 1/16.
  constexpr double kUlp = 0.0625 + kTolerance;
  replay_all(
      splits, {{main_grad}, {y, kUlp}, {dx, kUlp}}, [&] { return step(context, true); },
      [&] { return step(reference, false); });
}

TEST_P(GraphTest, HostSizesAreFrozenAtCapture) {
  GpuArray lhs(DType::kBF16, {kM, kK});
  GpuArray rhs(DType::kBF16, {kGroups, kK, kN});
  GpuArray out(DType::kF32, {kM, kN});
  lhs.fill_random(1);
  rhs.fill_random(2);
  std::vector<int64_t> sizes = {100, 0, 50, 3, 140};
  const auto call = [&] {
    return gmm(context, {.lhs = lhs.view(),
                         .rhs = rhs.view(),
                         .group_sizes = {sizes.data(), DType::kI64, kGroups},
                         .out = out.view(),
                         .options = on_stream()});
  };
  ASSERT_TRUE(call().ok());
  ASSERT_TRUE(context.check(kGpu, stream).ok());
  const cudaGraphExec_t graph = capture(stream, call);
  ASSERT_NE(graph, nullptr);
  const std::vector<int64_t> frozen = sizes;
  sizes.assign(kGroups, 1);
  out.upload();
  ASSERT_EQ(cudaGraphLaunch(graph, stream), cudaSuccess);
  ASSERT_TRUE(context.check(kGpu, stream).ok());
  out.download();
  ASSERT_TRUE(gmm(reference, {.lhs = lhs.host_view(),
                              .rhs = rhs.host_view(),
                              .group_sizes = {frozen.data(), DType::kI64, kGroups},
                              .out = out.host_view()})
                  .ok());
  expect_close(out, out, kTolerance, "frozen sizes");
  cudaGraphExecDestroy(graph);
}

TEST_P(GraphTest, CaptureWithoutWorkspaceIsAClearError) {
  GpuArray lhs(DType::kBF16, {kM, kK});
  GpuArray rhs(DType::kBF16, {kGroups, kK, kN});
  GpuArray out(DType::kF32, {kM, kN});
  GpuArray sizes(DType::kI32, {kGroups});
  lhs.fill_random(1);
  rhs.fill_random(2);
  sizes.set({300, 0, 0, 0, 0});
  GmmArgs args{.lhs = lhs.view(),
               .rhs = rhs.view(),
               .group_sizes = sizes.sizes(),
               .out = out.view(),
               .options = on_stream()};
  Context fresh(options());
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  const Status refused = gmm(fresh, args);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(refused.code(), StatusCode::kInvalid);
  EXPECT_NE(refused.message().find("make this call once before the capture"), std::string::npos)
      << refused.message();

  // With a workspace of the caller's the very first call can be captured.
  size_t size_bytes = 0;
  ASSERT_TRUE(gmm_workspace_size(fresh, args, &size_bytes).ok());
  void* workspace = device_memory().allocate(size_bytes);
  args.options.workspace = workspace;
  args.options.workspace_size_bytes = size_bytes;
  const cudaGraphExec_t executable = capture(stream, [&] { return gmm(fresh, args); });
  ASSERT_NE(executable, nullptr);
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_TRUE(fresh.check(kGpu, stream).ok());
  out.download();
  ASSERT_TRUE(gmm(reference, {.lhs = lhs.host_view(),
                              .rhs = rhs.host_view(),
                              .group_sizes = sizes.host_sizes(),
                              .out = out.host_view()})
                  .ok());
  expect_close(out, out, kTolerance, "caller's workspace");
  cudaGraphExecDestroy(executable);
  device_memory().release(workspace);
}

INSTANTIATE_TEST_SUITE_P(All, GraphTest, testing::ValuesIn(backend_names()), backend_of);

}  // namespace
}  // namespace cadre::tests
