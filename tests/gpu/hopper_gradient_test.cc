// The Hopper kernels that make an activation's gradient from a product in their epilogue: what they
// write beside what a product and activate_grad write, at every edge, and of rows among others.
#include <algorithm>
#include <numeric>

#include "core/text.h"
#include "ops/gmm_grad.h"
#include "tests/gpu/gpu_fixture.h"

namespace cadre::tests {
namespace {

struct Shape {
  std::vector<int64_t> sizes;
  int64_t tail = 0;
  int64_t k = 72;
  int64_t columns = 136;  ///< of the activation
  bool transposed = true;
  bool weighed = true;
};

std::string to_string(const Shape& s, const Activation& activation, DType dtype) {
  return text("kind ", static_cast<int>(activation.kind), " layout ",
              static_cast<int>(activation.layout), " ", name_of(dtype), " k ", s.k, " columns ",
              s.columns, s.transposed ? " [g, n, k]" : " [g, k, n]", s.weighed ? " weighed" : "");
}

const char* kernel_of(const Activation& activation) {
  if (!activation.gated()) return "sm90/gmm_192x128_d_activated";
  return activation.layout == GateLayout::kInterleaved ? "sm90/gmm_192x128_d_interleaved"
                                                       : "sm90/gmm_192x128_d_gated";
}

/// A product and an activation's gradient, on the device.
struct Operands {
  Operands(const Shape& given, const Activation& with, DType type, uint64_t seed)
      : shape(given),
        activation(with),
        m(std::accumulate(given.sizes.begin(), given.sizes.end(), given.tail)),
        experts(static_cast<int64_t>(given.sizes.size())),
        dtype(type),
        dy(type, {m, given.k}),
        w2(type, given.transposed ? std::vector<int64_t>{experts, given.columns, given.k}
                                  : std::vector<int64_t>{experts, given.k, given.columns}),
        preact(type, {m, given.columns * with.columns()}),
        row_scale(DType::kF32, {m}),
        sizes(DType::kI32, {experts}) {
    dy.fill_random(seed);
    w2.fill_random(seed + 1);
    preact.fill_random(seed + 2);
    row_scale.fill_random(seed + 3);
    sizes.set(given.sizes);
  }

  ops::GmmGradArgs args(const GpuArray& out) const {
    return {.product = {.lhs = dy.view(),
                        .rhs = w2.view(),
                        .group_sizes = sizes.sizes(),
                        .out = out.view(),
                        .transpose_rhs = shape.transposed},
            .preact = preact.view(),
            .row_scale = shape.weighed ? row_scale.view() : TensorView{},
            .activation = activation,
            .activated = out.view()};
  }

  Shape shape;
  Activation activation;
  int64_t m;
  int64_t experts;
  DType dtype;
  GpuArray dy, w2, preact, row_scale, sizes;
};

/// What a call writes.
struct Results {
  explicit Results(const Operands& in)
      : activated(in.dtype, {in.m, in.shape.columns}),
        d_preact(in.dtype, {in.m, in.shape.columns * in.activation.columns()}),
        row_dot(DType::kF32, {in.m}) {}

  void download() {
    for (GpuArray* array : {&activated, &d_preact, &row_dot}) {
      array->download();
      EXPECT_TRUE(array->guards_intact());
    }
  }

  GpuArray activated, d_preact, row_dot;
};

class HopperGradient : public HopperTest {
 protected:
  /// By one kernel, which is asked for: no other would do.
  void run_fused(const Operands& in, Results& out) {
    ops::GmmGradArgs args = in.args(out.activated);
    args.d_preact = out.d_preact.view();
    args.row_dot = out.row_dot.view();
    args.options.config = kernel_of(in.activation);
    expect_ok(ops::gmm_grad(context_, args));
    out.download();
  }

  /// By two ops.
  void run_apart(const Operands& in, Results& out) {
    const ops::GmmGradArgs args = in.args(out.activated);
    expect_ok(gmm(context_, args.product));
    expect_ok(activate_grad(context_, {.preact = args.preact,
                                       .grad = out.activated.view(),
                                       .row_scale = args.row_scale,
                                       .activation = args.activation,
                                       .d_preact = out.d_preact.view(),
                                       .activated = out.activated.view(),
                                       .row_dot = out.row_dot.view()}));
    out.download();
  }

  void expect_ok(const Status& status) {
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(device_memory().finish(context_).ok());
  }

  /// Two roundings to the type apart, since a compiler may contract differently in two kernels.
  /// Rows of no expert are the fused kernel's alone: zeros (RowsOfOthersAreZero).
  static void expect_near(const GpuArray& got, const GpuArray& want, const Operands& in,
                          const std::string& what) {
    const double ulp = got.dtype() == DType::kBF16 ? 1.0 / 128 : 1.0 / 1024;
    const int64_t count = got.count() / in.m * (in.m - in.shape.tail);
    int64_t apart = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double a = got.after(i), b = want.after(i);
      apart += a != b;
      if (std::abs(a - b) <= ulp * std::abs(b) + 1e-6) continue;
      ADD_FAILURE() << what << ": element " << i << " = " << a << ", two ops give " << b;
      return;
    }
    EXPECT_LE(apart, count / 50) << what << ": too many elements are rounded otherwise";
  }

  /// Sums in another order: f32's error of as many terms.
  static void expect_dots(const Results& got, const Results& want, const Operands& in) {
    for (int64_t row = 0; row < in.m; ++row) {
      const double a = got.row_dot.after(row), b = want.row_dot.after(row);
      const double bound =
          1e-5 * static_cast<double>(in.shape.columns) * std::sqrt(static_cast<double>(in.shape.k));
      if (std::abs(a - b) <= bound) continue;
      ADD_FAILURE() << "row_dot[" << row << "] = " << a << ", two ops give " << b;
      return;
    }
  }

  void expect_both_agree(const Shape& shape, const Activation& activation, DType dtype) {
    const Operands in(shape, activation, dtype, ++seed_ * 10);
    Results fused(in), apart(in);
    run_fused(in, fused);
    run_apart(in, apart);
    const std::string what = to_string(shape, activation, dtype);
    SCOPED_TRACE(what);
    expect_near(fused.activated, apart.activated, in, "activated");
    expect_near(fused.d_preact, apart.d_preact, in, "d_preact");
    expect_dots(fused, apart, in);
  }

  // Few multiprocessors: a CTA takes many tiles, and its warpgroups take turns.
  Context context_{ContextOptions{.backend = "cuda", .sm_count = 3}};
  uint64_t seed_ = 0;
};

std::vector<Activation> all_activations() {
  std::vector<Activation> all;
  for (const ActivationKind kind : {ActivationKind::kSwiglu, ActivationKind::kGegluTanh,
                                    ActivationKind::kGegluErf, ActivationKind::kClampedSwiglu}) {
    for (const GateLayout layout : {GateLayout::kConcatenated, GateLayout::kInterleaved}) {
      all.push_back({.kind = kind, .layout = layout, .limit = 0.75});
    }
  }
  for (const ActivationKind kind : {ActivationKind::kSilu, ActivationKind::kGeluTanh,
                                    ActivationKind::kGeluErf, ActivationKind::kRelu2}) {
    all.push_back({.kind = kind});
  }
  return all;
}

TEST_F(HopperGradient, IsRightForEveryActivation) {
  for (const Activation& activation : all_activations()) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      for (const bool transposed : {false, true}) {
        expect_both_agree({.sizes = {130, 0, 1, 257, 33, 410},
                           .tail = 70,
                           .transposed = transposed,
                           .weighed = transposed},
                          activation, dtype);
      }
    }
  }
}

// Columns of less than a tile, of a vector more than one, and long sums.
TEST_F(HopperGradient, IsRightAtTheEdges) {
  for (const Activation& activation :
       {Activation{.kind = ActivationKind::kSwiglu},
        Activation{.kind = ActivationKind::kSwiglu, .layout = GateLayout::kInterleaved},
        Activation{.kind = ActivationKind::kSilu}}) {
    for (const int64_t columns : {8, 24, 56, 64, 72, 128, 200, 392}) {
      for (const int64_t k : {8, 64, 520}) {
        expect_both_agree({.sizes = {64, 191, 192, 193, 0, 7}, .k = k, .columns = columns},
                          activation, DType::kBF16);
      }
    }
  }
}

// The gradient in the place of its input; and each result alone has the bits that it has among all.
TEST_F(HopperGradient, ResultsAloneAndInPlaceHaveTheSameBits) {
  for (const GateLayout layout : {GateLayout::kConcatenated, GateLayout::kInterleaved}) {
    Operands in({.sizes = {130, 300, 0, 33}, .tail = 5},
                {.kind = ActivationKind::kSwiglu, .layout = layout}, DType::kBF16, 77);
    Results all(in), dots(in);
    run_fused(in, all);
    ops::GmmGradArgs args = in.args(dots.activated);
    args.activated = {};
    args.row_dot = dots.row_dot.view();
    args.options.config = kernel_of(in.activation);
    expect_ok(ops::gmm_grad(context_, args));
    dots.row_dot.download();
    EXPECT_TRUE(dots.row_dot.same_after(all.row_dot));
    args.row_dot = {};
    args.d_preact = in.preact.view();
    expect_ok(ops::gmm_grad(context_, args));
    in.preact.download();
    for (int64_t i = 0; i < in.preact.count(); ++i) {
      ASSERT_EQ(in.preact.after(i), all.d_preact.after(i)) << i;
    }
  }
}

// Chosen by itself, a row has the same bits among few rows and among many.
TEST_F(HopperGradient, ARowsBitsDependOnTheRowAlone) {
  const Activation activation{.kind = ActivationKind::kSwiglu};
  const Operands many({.sizes = {700, 5}}, activation, DType::kBF16, 5);
  Results of_many(many);
  run_fused(many, of_many);
  const Operands few({.sizes = {9, 3}}, activation, DType::kBF16, 6);
  Results of_few(few);
  ops::GmmGradArgs args = few.args(of_few.activated);
  args.product.rhs = many.w2.view();
  args.d_preact = of_few.d_preact.view();
  args.row_dot = of_few.row_dot.view();
  // The first nine rows of the larger call.
  args.product.lhs = TensorView::contiguous(many.dy.data(), DType::kBF16, {few.m, 72}, kGpu);
  args.preact = TensorView::contiguous(many.preact.data(), DType::kBF16, {few.m, 272}, kGpu);
  args.row_scale = TensorView::contiguous(many.row_scale.data(), DType::kF32, {few.m}, kGpu);
  expect_ok(ops::gmm_grad(context_, args));
  of_few.download();
  for (int64_t row = 0; row < 9; ++row) {
    ASSERT_EQ(of_few.row_dot.after(row), of_many.row_dot.after(row)) << row;
    for (int64_t i = 0; i < 272; ++i) {
      ASSERT_EQ(of_few.d_preact.after(row * 272 + i), of_many.d_preact.after(row * 272 + i));
    }
  }
}

// Rows of no local group become zeros in every result, and NaN in them reaches nothing.
TEST_F(HopperGradient, RowsOfOthersAreZero) {
  Operands in({.sizes = {40, 200, 70, 30}, .tail = 11}, {.kind = ActivationKind::kGegluTanh},
              DType::kBF16, 9);
  for (const int64_t row : {0, 39, 240, 309, 350}) {
    for (int64_t i = 0; i < in.shape.k; ++i) in.dy.store(row * in.shape.k + i, NAN);
    for (int64_t i = 0; i < 272; ++i) in.preact.store(row * 272 + i, NAN);
  }
  in.dy.upload();
  in.preact.upload();
  Results out(in);
  ops::GmmGradArgs args = in.args(out.activated);
  args.product.rhs = TensorView::contiguous(in.w2.data(), DType::kBF16, {1, 136, 72}, kGpu);
  args.product.group_offset = 1;
  args.d_preact = out.d_preact.view();
  args.row_dot = out.row_dot.view();
  args.options.config = kernel_of(in.activation);
  expect_ok(ops::gmm_grad(context_, args));
  out.download();
  for (int64_t row = 0; row < in.m; ++row) {
    const bool local = row >= 40 && row < 240;
    for (int64_t i = 0; i < 136; ++i) {
      const double value = out.activated.after(row * 136 + i);
      ASSERT_TRUE(local ? std::isfinite(value) : value == 0.0) << row << ", " << i;
    }
    for (int64_t i = 0; i < 272; ++i) {
      const double value = out.d_preact.after(row * 272 + i);
      ASSERT_TRUE(local ? std::isfinite(value) : value == 0.0) << row << ", " << i;
    }
    const double dot = out.row_dot.after(row);
    ASSERT_TRUE(local ? std::isfinite(dot) : dot == 0.0) << row;
  }
}

// Sizes that no router makes: nothing is written out of range, and the fault is reported.
TEST_F(HopperGradient, BadSizesTouchNothingBeside) {
  const Activation activation{.kind = ActivationKind::kSwiglu, .layout = GateLayout::kInterleaved};
  for (const std::vector<int64_t>& bad :
       {std::vector<int64_t>{100, -3, 50}, std::vector<int64_t>{100, 5000, 50}}) {
    Operands in({.sizes = {100, 100, 50}}, activation, DType::kBF16, 21);
    in.sizes.set(bad);
    Results out(in);
    ops::GmmGradArgs args = in.args(out.activated);
    args.d_preact = out.d_preact.view();
    args.row_dot = out.row_dot.view();
    args.options.config = kernel_of(activation);
    ASSERT_TRUE(ops::gmm_grad(context_, args).ok());
    EXPECT_FALSE(context_.check(kGpu).ok());
    out.download();
    for (int64_t row = 100; row < in.m; ++row) ASSERT_EQ(out.row_dot.after(row), 0.0) << row;
  }
}

}  // namespace
}  // namespace cadre::tests
