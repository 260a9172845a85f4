// The steps of each pass, and which room of the workspace serves two tensors.
#include "ops/moe_mlp_passes.h"

namespace cadre::ops {
namespace {

const TensorView kNothing{};

/// The same memory, which held elements as large or larger, with another type.
TensorView as_type(const TensorView& matrix, DType dtype) {
  return TensorView::contiguous(matrix.data, dtype, {matrix.shape[0], matrix.shape[1]},
                                matrix.device);
}

/// Column `col` of a matrix, as a vector.
TensorView column(const TensorView& matrix, int64_t col) {
  return TensorView::strided(
      static_cast<char*>(matrix.data) + col * static_cast<int64_t>(size_of(matrix.dtype)),
      matrix.dtype, {matrix.shape[0]}, {matrix.strides[0]}, matrix.device);
}

/// Rows in the order of the experts: in memory, or by an index into rows in token order.
struct Rows {
  TensorView matrix{};
  TensorView index{};
};

/// Appends the steps of one pass.
class PassBuilder {
 public:
  PassBuilder(const MoePasses& passes, const MoeMlpRouting& routing, Scratch& scratch)
      : weights_(passes.weights),
        options_(passes.options),
        dims_(passes.dims),
        routing_(routing),
        scratch_(scratch) {}

  bool weighs_input() const { return routing_.weights.given() && options_.weights_on_input; }
  bool weighs_output() const { return routing_.weights.given() && !options_.weights_on_input; }

  /// CPU kernels follow an index as they pack. On a GPU a product would copy the rows first, and
  /// copies that the layer makes serve several products and lie where another tensor lies later.
  bool follows_indices() const { return dims_.device.kind == DeviceKind::kCpu; }

  /// Whether rows of x and dout must be copied for a product.
  bool gathers() const { return !routing_.sorted() && !follows_indices(); }

  Rows gather(std::string_view what, const TensorView& tokens, const TensorView& room) {
    const TensorView rows = as_type(room, tokens.dtype);
    add(what, PermuteArgs{.x = tokens,
                          .source_row = routing_.source_row,
                          .slot_row = routing_.slot_row,
                          .out = rows});
    return {rows, {}};
  }

  /// Rows of x, scaled where weights apply to the input. `room` is a function that finds [m, h].
  template <typename Room>
  Rows tokens(std::string_view what, const TensorView& x, Room room) {
    if (!weighs_input()) {
      return gathers() ? gather(what, x, room()) : Rows{x, routing_.source_row};
    }
    const TensorView rows = as_type(room(), x.dtype);
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

  TensorView room(DType dtype, int64_t cols) { return scratch_.matrix(dtype, dims_.m, cols); }

  OpSteps take() { return std::move(steps_); }

 private:
  const MoeMlpWeights& weights_;
  const MoeMlpOptions& options_;
  const MoeDims& dims_;
  const MoeMlpRouting& routing_;
  Scratch& scratch_;
  OpSteps steps_;
};

/// Room for rows of dout, of x and of dx, one after the other; none where they are x, dout and dx.
TensorView wide_room(const MoePasses& passes, const MoeMlpSaved& saved,
                     const MoeMlpBackwardArgs& args, Scratch& scratch) {
  if (saved.routing.sorted()) return {};
  const bool dout_is_wider = size_of(args.dout.dtype) > size_of(saved.x.dtype);
  return scratch.matrix(dout_is_wider ? args.dout.dtype : saved.x.dtype, passes.dims.m,
                        passes.dims.h);
}

/// dw2 from the rows of dout; then dw13 from rows of x, which may take their room.
void add_weight_gradients(PassBuilder& pass, const MoeMlpSaved& saved,
                          const MoeMlpBackwardArgs& args, const Rows& dy, const TensorView& room,
                          const TensorView& d_preact, const TensorView& activated) {
  if (args.dw2.given()) {
    pass.add("dw2", pass.weight_gradient(dy, {activated, {}}, args.dw2, args.dw_beta));
  }
  if (!args.dw13.given()) return;
  const Rows tokens = pass.tokens("dw13", saved.x, [&] { return room; });
  pass.add("dw13", pass.weight_gradient({d_preact, {}}, tokens, args.dw13, args.dw_beta));
}

}  // namespace

OpSteps MoePasses::forward(const MoeMlpForwardArgs& args, Scratch& scratch) const {
  const MoeMlpRouting& routing = args.routing;
  PassBuilder pass(*this, routing, scratch);
  const DType dtype = args.x.dtype;
  // The first product has read its rows when the second writes.
  const TensorView y = routing.sorted() ? args.out : pass.room(dtype, dims.h);
  const Rows tokens = pass.tokens("x", args.x, [&] { return y; });
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
  PassBuilder pass(*this, saved.routing, scratch);
  const TensorView room = wide_room(*this, saved, args, scratch);
  Rows dy{args.dout, saved.routing.source_row};
  if (args.dw2.given() && pass.gathers()) dy = pass.gather("dout", args.dout, room);
  add_weight_gradients(pass, saved, args, dy, room, args.d_preact, args.activated);
  return pass.take();
}

OpSteps MoePasses::backward(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args, bool delayed,
                            Scratch& scratch) const {
  const MoeMlpRouting& routing = saved.routing;
  PassBuilder pass(*this, routing, scratch);
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

  const TensorView room = wide_room(*this, saved, args, scratch);
  Rows dy{args.dout, routing.source_row};
  // bias_grad follows no index.
  if ((wants_bias2 && !routing.sorted()) || pass.gathers()) {
    dy = pass.gather("dout", args.dout, room);
  }
  const bool f64 =
      dtype == DType::kF64 || (routing.weights.given() && routing.weights.dtype == DType::kF64);
  const DType number = f64 ? DType::kF64 : DType::kF32;
  TensorView row_weight;
  if (weighs) {
    const TensorView weights_of_rows = pass.room(number, 1);
    row_weight = column(weights_of_rows, 0);
    pass.add("weights", CombineGradArgs{.slot_row = routing.slot_row,
                                        .source_row = routing.source_row,
                                        .weights = routing.weights,
                                        .dy = weights_of_rows});
  }
  // Of each row: the activation's part of its weight's gradient, and that of bias2.
  TensorView dots, d_preact = args.d_preact, activated = args.activated;
  if (wants_dots) dots = pass.room(number, wants_bias_dots ? 2 : 1);
  if (wants_d_preact && !d_preact.given()) d_preact = pass.room(dtype, dims.full);
  if (wants_activated && !activated.given()) activated = pass.room(dtype, dims.i);
  if (wants_inner) {
    const TensorView d_inner = pass.room(dtype, dims.i);
    GmmArgs product = pass.product(dy, weights.w2, d_inner);
    product.transpose_rhs = weights.transposed;
    pass.add("w2", product);
    pass.add("activation", ActivateGradArgs{.preact = saved.preact,
                                            .grad = d_inner,
                                            .row_scale = row_weight,
                                            .activation = options.activation,
                                            .d_preact = wants_d_preact ? d_preact : kNothing,
                                            .activated = wants_activated ? activated : kNothing,
                                            .row_dot = wants_dots ? column(dots, 0) : kNothing});
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
  if (!delayed) add_weight_gradients(pass, saved, args, dy, room, d_preact, activated);
  if (!wants_rows) return pass.take();
  const TensorView dx_rows = routing.sorted() ? args.dx : as_type(room, dtype);
  GmmArgs product = pass.product({d_preact, {}}, weights.w13, dx_rows);
  product.transpose_rhs = weights.transposed;
  pass.add("dx", product);
  if (args.dx.given() && !routing.sorted()) {
    pass.add("dx", CombineArgs{.y = dx_rows,
                               .slot_row = routing.slot_row,
                               .weights = weighs ? kNothing : routing.weights,
                               .out = args.dx});
  }
  if (args.dweights.given() && !weighs) {
    pass.add("dweights", CombineGradArgs{.dout = saved.x,
                                         .slot_row = routing.slot_row,
                                         .y = dx_rows,
                                         .dweights = args.dweights});
  }
  return pass.take();
}

}  // namespace cadre::ops
