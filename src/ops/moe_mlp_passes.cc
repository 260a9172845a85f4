// The steps of each pass, and where the tensors between them lie: each takes its room right before
// the step that writes it and gives it back after the last that reads it, so that later tensors lie
// where earlier ones did.
#include "ops/moe_mlp_passes.h"

namespace cadre::ops {
namespace {

const TensorView kNothing{};

/// Column `col` of a matrix, as a vector.
TensorView column(const TensorView& matrix, int64_t col) {
  return TensorView::strided(
      static_cast<char*>(matrix.data) + col * static_cast<int64_t>(size_of(matrix.dtype)),
      matrix.dtype, {matrix.shape[0]}, {matrix.strides[0]}, matrix.device);
}

/// The bytes of dw13 where a pass replaces them with its last step: room until then.
Scratch room_in(const MoeDims& dims, const MoeMlpBackwardArgs& args) {
  const GroupedTensor& out = args.dw13;
  const bool replaced = !args.dw_beta.varies() && args.dw_beta.uniform == 0;
  const int64_t rows = out.rows.uniform, cols = out.cols.uniform;
  if (!replaced || out.placement != Placement::kStacked || out.col_stride != 1 ||
      out.row_stride != cols || out.group_stride != rows * cols) {
    return {nullptr, dims.device, 0};
  }
  const size_t bytes = static_cast<size_t>(out.num_groups * rows * cols) * size_of(out.dtype);
  // As much as there is wherever the first aligned byte lies.
  const size_t capacity = bytes > kScratchAlignment ? bytes - kScratchAlignment : 0;
  const size_t start = align_scratch(reinterpret_cast<uintptr_t>(out.data));
  return {reinterpret_cast<void*>(start), dims.device,
          capacity / kScratchAlignment * kScratchAlignment};
}

/// Rows in the order of the experts: in memory, or by an index into rows in token order.
struct Rows {
  TensorView matrix{};
  TensorView index{};
};

/// Appends the steps of one pass.
class PassBuilder {
 public:
  /// `lent`: memory that serves tensors of steps before the last.
  PassBuilder(const MoePasses& passes, const MoeMlpRouting& routing, Scratch& scratch,
              const Scratch& lent)
      : weights_(passes.weights),
        options_(passes.options),
        dims_(passes.dims),
        routing_(routing),
        scratch_(scratch),
        lent_(lent) {}

  bool weighs_input() const { return routing_.weights.given() && options_.weights_on_input; }
  bool weighs_output() const { return routing_.weights.given() && !options_.weights_on_input; }

  /// CPU kernels follow an index as they pack. On Hopper a product would copy the rows first, and
  /// copies that the layer makes serve several products and lie where another tensor lies later.
  bool follows_indices() const { return dims_.device.kind == DeviceKind::kCpu; }

  /// Whether rows of x and dout must be copied for a product.
  bool gathers() const { return !routing_.sorted() && !follows_indices(); }

  /// Rows in memory, which lie in `room`.
  Rows gather(std::string_view what, const TensorView& tokens, const TensorView& rows) {
    add(what, PermuteArgs{.x = tokens,
                          .source_row = routing_.source_row,
                          .slot_row = routing_.slot_row,
                          .out = rows});
    return {rows, {}};
  }

  /// Rows of x, scaled where weights apply to the input.
  Rows tokens(std::string_view what, const TensorView& x) {
    if (!weighs_input() && !gathers()) return {x, routing_.source_row};
    const TensorView rows = room(x.dtype, dims_.h);
    if (!weighs_input()) return gather(what, x, rows);
    add(what, CombineGradArgs{.dout = x,
                              .slot_row = routing_.slot_row,
                              .source_row = routing_.source_row,
                              .weights = routing_.weights,
                              .dy = rows});
    return {rows, {}};
  }

  void add(std::string_view what, const decltype(OpStep::call)& call) {
    steps_.push_back({what, call});
  }

  /// rows @ weight, or rows @ weight^T in a backward pass.
  GmmArgs product(const Rows& rows, const GroupedTensor& weight, const TensorView& out) const {
    return {.lhs = rows.matrix,
            .rhs = weight,
            .group_sizes = routing_.group_sizes,
            .out = out,
            .lhs_rows = rows.index,
            .group_offset = routing_.group_offset};
  }

  /// The gradient of a weight between `inputs` and `results`, as the weight lies.
  TgmmArgs weight_gradient(const Rows& results, const Rows& inputs, const GroupedTensor& out,
                           const GroupScalars& beta) const {
    const Rows& lhs = weights_.transposed ? inputs : results;
    const Rows& rhs = weights_.transposed ? results : inputs;
    return {.lhs = lhs.matrix,
            .rhs = rhs.matrix,
            .group_sizes = routing_.group_sizes,
            .out = out,
            .lhs_rows = lhs.index,
            .rhs_rows = rhs.index,
            .beta = beta,
            .group_offset = routing_.group_offset};
  }

  BiasGradArgs bias_gradient(const TensorView& dy, const GroupedTensor& dbias,
                             bool accumulate) const {
    return {.dy = dy,
            .group_sizes = routing_.group_sizes,
            .dbias = dbias,
            .accumulate = accumulate,
            .group_offset = routing_.group_offset};
  }

  /// [m, cols] of the workspace.
  TensorView room(DType dtype, int64_t cols) { return scratch_.matrix(dtype, dims_.m, cols); }

  /// [m, cols] that the last step doesn't read.
  TensorView brief_room(DType dtype, int64_t cols) {
    const TensorView lent = lent_.matrix(dtype, dims_.m, cols);
    return lent.given() ? lent : room(dtype, cols);
  }

  /// Its last reader has been added. A tensor of the caller's, or none, is left alone.
  void give_back(const TensorView& matrix) {
    if (matrix.rank != 2 || lent_.give_back(matrix)) return;
    scratch_.give_back(matrix);
  }

  OpSteps take() { return std::move(steps_); }

 private:
  const MoeMlpWeights& weights_;
  const MoeMlpOptions& options_;
  const MoeDims& dims_;
  const MoeMlpRouting& routing_;
  Scratch& scratch_;
  Scratch lent_;
  OpSteps steps_;
};

/// The gradients of x and of weights on it.
void add_dx(PassBuilder& pass, const MoePasses& passes, const MoeMlpSaved& saved,
            const MoeMlpBackwardArgs& args, const TensorView& d_preact) {
  const MoeMlpRouting& routing = saved.routing;
  const TensorView rows =
      routing.sorted() ? args.dx : pass.brief_room(saved.x.dtype, passes.dims.h);
  GmmArgs product = pass.product({d_preact, {}}, passes.weights.w13, rows);
  product.transpose_rhs = passes.weights.transposed;
  pass.add("dx", product);
  if (routing.sorted()) return;
  if (args.dx.given()) {
    pass.add("dx", CombineArgs{.y = rows,
                               .slot_row = routing.slot_row,
                               .weights = pass.weighs_output() ? kNothing : routing.weights,
                               .out = args.dx});
  }
  if (args.dweights.given() && !pass.weighs_output()) {
    pass.add(
        "dweights",
        CombineGradArgs{
            .dout = saved.x, .slot_row = routing.slot_row, .y = rows, .dweights = args.dweights});
  }
  pass.give_back(rows);
}

}  // namespace

OpSteps MoePasses::forward(const MoeMlpForwardArgs& args, Scratch& scratch) const {
  const MoeMlpRouting& routing = args.routing;
  PassBuilder pass(*this, routing, scratch, {nullptr, dims.device, 0});
  const DType dtype = args.x.dtype;
  const Rows tokens = pass.tokens("x", args.x);
  // Without an activation the pre-activation is the second product's input itself.
  const bool activates = options.activation.kind != ActivationKind::kNone;
  const TensorView inner =
      !activates && args.preact.given() ? args.preact : pass.room(dtype, dims.i);
  GmmArgs first = pass.product(tokens, weights.w13, inner);
  first.transpose_rhs = !weights.transposed;
  first.bias = weights.bias13;
  first.activation = options.activation;
  if (activates) first.preactivation = args.preact;
  first.packed_rhs = weights.packed_w13;
  pass.add("w13", first);
  pass.give_back(tokens.matrix);
  const TensorView y = routing.sorted() ? args.out : pass.room(dtype, dims.h);
  GmmArgs second = pass.product({inner, {}}, weights.w2, y);
  second.transpose_rhs = !weights.transposed;
  second.bias = weights.bias2;
  second.packed_rhs = weights.packed_w2;
  pass.add("w2", second);
  if (routing.sorted()) return pass.take();
  pass.add("out", CombineArgs{.y = y,
                              .slot_row = routing.slot_row,
                              .weights = pass.weighs_output() ? routing.weights : kNothing,
                              .shared = args.shared,
                              .residual = args.residual,
                              .out = args.out});
  return pass.take();
}

OpSteps MoePasses::backward_dw(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args,
                               Scratch& scratch) const {
  PassBuilder pass(*this, saved.routing, scratch, room_in(dims, args));
  if (args.dw2.given()) {
    Rows dy{args.dout, saved.routing.source_row};
    if (pass.gathers()) {
      dy = pass.gather("dout", args.dout, pass.brief_room(args.dout.dtype, dims.h));
    }
    pass.add("dw2", pass.weight_gradient(dy, {args.activated, {}}, args.dw2, args.dw_beta));
    pass.give_back(dy.matrix);
  }
  if (args.dw13.given()) {
    const Rows tokens = pass.tokens("dw13", saved.x);
    pass.add("dw13", pass.weight_gradient({args.d_preact, {}}, tokens, args.dw13, args.dw_beta));
  }
  return pass.take();
}

OpSteps MoePasses::backward(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args, bool delayed,
                            Scratch& scratch) const {
  const MoeMlpRouting& routing = saved.routing;
  // A delayed pass doesn't write dw13.
  PassBuilder pass(*this, routing, scratch,
                   delayed ? Scratch(nullptr, dims.device, 0) : room_in(dims, args));
  const DType dtype = saved.x.dtype;
  const bool weighs = pass.weighs_output();
  const bool wants_rows = args.dx.given() || (args.dweights.given() && !weighs);
  const bool wants_d_preact =
      wants_rows || args.dw13.given() || args.dbias13.given() || args.d_preact.given();
  const bool wants_activated = args.dw2.given() || args.activated.given();
  const bool wants_dots = args.dweights.given() && weighs;
  const bool wants_bias_dots = wants_dots && weights.bias2.given();
  const bool wants_bias2 = args.dbias2.given() || wants_bias_dots;
  const bool wants_inner = wants_d_preact || wants_activated || wants_dots;
  if (!wants_inner && !wants_bias2) return {};

  Rows dy{args.dout, routing.source_row};
  // bias_grad follows no index.
  if ((wants_bias2 && !routing.sorted()) || pass.gathers()) {
    dy = pass.gather("dout", args.dout, pass.brief_room(args.dout.dtype, dims.h));
  }
  const bool f64 =
      dtype == DType::kF64 || (routing.weights.given() && routing.weights.dtype == DType::kF64);
  const DType number = f64 ? DType::kF64 : DType::kF32;
  TensorView row_weight;
  if (weighs) {
    const TensorView weights_of_rows = pass.brief_room(number, 1);
    row_weight = column(weights_of_rows, 0);
    pass.add("weights", CombineGradArgs{.slot_row = routing.slot_row,
                                        .source_row = routing.source_row,
                                        .weights = routing.weights,
                                        .dy = weights_of_rows});
  }
  // Of each row: the activation's part of its weight's gradient, and that of bias2.
  TensorView dots, d_preact = args.d_preact, activated = args.activated;
  if (wants_dots) dots = pass.brief_room(number, wants_bias_dots ? 2 : 1);
  if (wants_inner) {
    // The activation takes the place of its gradient.
    const TensorView d_inner =
        activated.given() && activated.dtype == dtype ? activated : pass.brief_room(dtype, dims.i);
    if (!activated.given()) activated = d_inner;
    if (wants_d_preact && !d_preact.given()) d_preact = pass.room(dtype, dims.full);
    GmmArgs product = pass.product(dy, weights.w2, d_inner);
    product.transpose_rhs = weights.transposed;
    pass.add("w2", GmmGradArgs{.product = product,
                               .preact = saved.preact,
                               .row_scale = row_weight,
                               .activation = options.activation,
                               .d_preact = wants_d_preact ? d_preact : kNothing,
                               .activated = wants_activated ? activated : kNothing,
                               .row_dot = wants_dots ? column(dots, 0) : kNothing});
    if (activated.data != d_inner.data) pass.give_back(d_inner);
  }
  if (wants_bias2) {
    BiasGradArgs bias2 = pass.bias_gradient(dy.matrix, args.dbias2, args.accumulate_dbias);
    if (wants_bias_dots) bias2.dbias_scale = column(dots, 1);
    bias2.bias = weights.bias2;
    bias2.bias_scale = row_weight;
    pass.add("dbias2", bias2);
  }
  if (args.dbias13.given()) {
    pass.add("dbias13", pass.bias_gradient(d_preact, args.dbias13, args.accumulate_dbias));
  }
  if (wants_dots) {
    pass.add("dweights",
             CombineGradArgs{.slot_row = routing.slot_row, .y = dots, .dweights = args.dweights});
  }
  if (args.dw2.given() && !delayed) {
    pass.add("dw2", pass.weight_gradient(dy, {activated, {}}, args.dw2, args.dw_beta));
  }
  pass.give_back(activated);
  pass.give_back(dy.matrix);
  if (wants_rows) add_dx(pass, *this, saved, args, d_preact);
  if (args.dw13.given() && !delayed) {
    const Rows tokens = pass.tokens("dw13", saved.x);
    pass.add("dw13", pass.weight_gradient({d_preact, {}}, tokens, args.dw13, args.dw_beta));
  }
  return pass.take();
}

}  // namespace cadre::ops
