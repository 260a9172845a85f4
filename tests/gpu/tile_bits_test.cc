// Every tile shape of the portable tensor-core kernel that the GPU has room for, every layout,
// alignment and number of multiprocessors gives the same bits, and these are right.
#include <array>
#include <cmath>

#include "cuda/device.h"
#include "cuda/sm80/mma_shape.h"
#include "cuda/sm80/shape_fits.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

constexpr int64_t kM = 700;
constexpr int64_t kGroups = 4;
const std::vector<int64_t> kRows = {300, 0, 129, 200};  // 71 rows are tail

/// A [.., rows, cols] array whose rows lie `pitch` elements apart, from element `offset` on.
struct Padded {
  int64_t groups;
  int64_t rows;
  int64_t cols;
  int64_t pitch;
  int64_t offset;

  GpuArray make(DType dtype) const { return {dtype, {groups * rows * pitch + offset}}; }

  TensorView at(void* data, DType dtype, Device device) const {
    char* first = static_cast<char*>(data) + offset * static_cast<int64_t>(size_of(dtype));
    if (groups == 1) return TensorView::strided(first, dtype, {rows, cols}, {pitch, 1}, device);
    return TensorView::strided(first, dtype, {groups, rows, cols}, {rows * pitch, pitch, 1},
                               device);
  }
  TensorView on_gpu(const GpuArray& array) const { return at(array.data(), array.dtype(), kGpu); }
  TensorView on_host(GpuArray& array) const {
    return at(array.host_view().data, array.dtype(), {});
  }
  /// Element (group, row, col) is `value(group, row, col)`.
  template <typename Value>
  void fill(GpuArray& array, Value value) const {
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          array.store(offset + (g * rows + i) * pitch + j, value(g, i, j));
        }
      }
    }
    array.upload();
  }
};

/// k, n, distance of rows from a multiple of 8, first element.
struct Layout {
  const char* name;
  int64_t k;
  int64_t n;
  int64_t pad;
  int64_t offset;
};

constexpr std::array kLayouts = {
    Layout{"whole_blocks", 320, 384, 0, 0}, Layout{"part_of_a_step", 200, 264, 0, 0},
    Layout{"part_of_16_bytes", 330, 390, 0, 0}, Layout{"no_alignment", 200, 264, 3, 1},
    Layout{"less_than_a_block", 24, 40, 0, 0}};

/// In [-1, 1), a function of the place alone.
double random_value(int64_t which, int64_t g, int64_t i, int64_t j) {
  auto bits = static_cast<uint64_t>(((which * 31 + g) * 4096 + i) * 4096 + j);
  for (int round = 0; round < 2; ++round) {
    bits = (bits ^ (bits >> 31)) * 0x9e3779b97f4a7c15u;
    bits ^= bits >> 29;
  }
  return static_cast<double>(bits >> 11) * 0x1p-52 - 1;
}

class TileBits : public GpuTest, public testing::WithParamInterface<Layout> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    sizes.set(kRows);
    const cuda::DeviceProperties* device = nullptr;
    const Status status = cuda::device_properties(0, &device);
    ASSERT_TRUE(status.ok()) << status.message();
    if (sm80::fits<sm80::DeepShape>(*device)) tiles.push_back("sm80/mma_128x128x64");
    if (sm80::fits<sm80::WideShape>(*device)) tiles.push_back("sm80/mma_128x256x64");
  }

  static Padded padded(int64_t groups, int64_t rows, int64_t cols, const Layout& layout) {
    return {groups, rows, cols, (cols + 7) / 8 * 8 + layout.pad, layout.offset};
  }

  std::vector<const char*> tiles = {"sm80/mma_128x128x32"};  ///< fits everywhere
  Context everything;
  /// Two blocks (or one) walk over all tiles, so that loads run on from tile to tile.
  Context one_multiprocessor{[] {
    ContextOptions options;
    options.sm_count = 1;
    return options;
  }()};
  Context reference{reference_context()};
  GpuArray sizes{DType::kI32, {kGroups}};
};

TEST_P(TileBits, GmmOfEveryTileIsTheSame) {
  const Layout& layout = GetParam();
  const Padded x_form = padded(1, kM, layout.k, layout);
  const Padded w_form = padded(kGroups, layout.k, layout.n, layout);
  const Padded t_form = padded(kGroups, layout.n, layout.k, layout);
  GpuArray x = x_form.make(DType::kBF16), w = w_form.make(DType::kBF16);
  GpuArray w_t = t_form.make(DType::kBF16);
  const auto weight = [](int64_t g, int64_t i, int64_t j) { return random_value(2, g, i, j); };
  x_form.fill(x, [](int64_t g, int64_t i, int64_t j) { return random_value(1, g, i, j); });
  w_form.fill(w, weight);
  t_form.fill(w_t, [&](int64_t g, int64_t i, int64_t j) { return weight(g, j, i); });
  GpuArray first(DType::kF32, {kM, layout.n});
  ASSERT_TRUE(gmm(reference, {.lhs = x_form.on_host(x),
                              .rhs = w_form.on_host(w),
                              .group_sizes = sizes.host_sizes(),
                              .out = first.host_view()})
                  .ok());
  bool have_first = false;
  for (const char* tile : tiles) {
    for (const bool transposed : {false, true}) {
      for (Context* context : {&everything, &one_multiprocessor}) {
        GpuArray out(DType::kF32, {kM, layout.n});
        GmmArgs call{.lhs = x_form.on_gpu(x),
                     .rhs = transposed ? t_form.on_gpu(w_t) : w_form.on_gpu(w),
                     .group_sizes = sizes.sizes(),
                     .out = have_first ? out.view() : first.view(),
                     .transpose_rhs = transposed};
        call.options.config = tile;
        const Status status = gmm(*context, call);
        ASSERT_TRUE(status.ok()) << status.message();
        GpuArray& result = have_first ? out : first;
        result.download();
        if (!have_first) expect_close(first, first, 1e-3, "against the reference");
        have_first = true;
        EXPECT_TRUE(result.same_after(first))
            << tile << (transposed ? " transposed" : "") << ", k " << layout.k << ", n " << layout.n
            << (context == &everything ? "" : ", one multiprocessor");
      }
    }
  }
}

TEST_P(TileBits, TgmmOfEveryTileIsTheSame) {
  const Layout& layout = GetParam();
  const Padded x_form = padded(1, kM, layout.k, layout);
  const Padded y_form = padded(1, kM, layout.n, layout);
  GpuArray x = x_form.make(DType::kBF16), y = y_form.make(DType::kBF16);
  // Rows behind the last group hold NaN: no group may meet them.
  const auto value = [](int64_t which, int64_t i, int64_t j) {
    return i < 629 ? random_value(which, 0, i, j) : std::nan("");
  };
  x_form.fill(x, [&](int64_t, int64_t i, int64_t j) { return value(3, i, j); });
  y_form.fill(y, [&](int64_t, int64_t i, int64_t j) { return value(4, i, j); });
  GpuArray first(DType::kF32, {kGroups, layout.k, layout.n});
  ASSERT_TRUE(tgmm(reference, {.lhs = x_form.on_host(x),
                               .rhs = y_form.on_host(y),
                               .group_sizes = sizes.host_sizes(),
                               .out = first.host_view()})
                  .ok());
  bool have_first = false;
  for (const char* tile : tiles) {
    for (Context* context : {&everything, &one_multiprocessor}) {
      GpuArray out(DType::kF32, {kGroups, layout.k, layout.n});
      TgmmArgs call{.lhs = x_form.on_gpu(x),
                    .rhs = y_form.on_gpu(y),
                    .group_sizes = sizes.sizes(),
                    .out = have_first ? out.view() : first.view()};
      call.options.config = tile;
      const Status status = tgmm(*context, call);
      ASSERT_TRUE(status.ok()) << status.message();
      GpuArray& result = have_first ? out : first;
      result.download();
      if (!have_first) expect_close(first, first, 1e-3, "against the reference");
      have_first = true;
      EXPECT_TRUE(result.same_after(first))
          << tile << ", k " << layout.k << ", n " << layout.n
          << (context == &everything ? "" : ", one multiprocessor");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, TileBits, testing::ValuesIn(kLayouts),
                         [](const auto& layout) { return std::string(layout.param.name); });

}  // namespace
}  // namespace cadre::tests
