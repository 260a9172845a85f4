// MoeMlp: checks everything, then calls its ops one after the other on one stream. A pass is a list
// of steps that is made twice: with addresses that nobody reads, to check each step and to learn
// how much workspace it needs, and with those of the workspace, to run it.
#include "cadre/moe_mlp.h"

#include <algorithm>
#include <memory>
#include <variant>
#include <vector>

#include "cadre/activate.h"
#include "cadre/bias_grad.h"
#include "cadre/combine.h"
#include "cadre/gmm.h"
#include "cadre/permute.h"
#include "cadre/tgmm.h"
#include "core/per_thread.h"
#include "ops/guarded.h"
#include "ops/moe_mlp_check.h"
#include "plan/row_call.h"

namespace cadre {
namespace {

using ops::MoeDims;

constexpr std::string_view kName = "moe_mlp";
/// More than any vector load or TMA box asks for.
constexpr size_t kAlignment = 256;
/// Where tensors of the workspace lie while a pass is only checked: no memory of any process.
constexpr uintptr_t kMadeUpAddress = uintptr_t{0x7} << 60;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

struct Step {
  std::string_view what;  ///< what of the layer it computes, for errors
  std::variant<PermuteArgs, CombineArgs, CombineGradArgs, ActivateArgs, ActivateGradArgs, GmmArgs,
               TgmmArgs, BiasGradArgs>
      call;
};
using Steps = std::vector<Step>;

Status run(Context& context, const Step& step) {
  return std::visit(
      plan::EachOf{[&](const PermuteArgs& args) { return permute(context, args); },
                   [&](const CombineArgs& args) { return combine(context, args); },
                   [&](const CombineGradArgs& args) { return combine_grad(context, args); },
                   [&](const ActivateArgs& args) { return activate(context, args); },
                   [&](const ActivateGradArgs& args) { return activate_grad(context, args); },
                   [&](const GmmArgs& args) { return gmm(context, args); },
                   [&](const TgmmArgs& args) { return tgmm(context, args); },
                   [&](const BiasGradArgs& args) { return bias_grad(context, args); }},
      step.call);
}

Status workspace_size(Context& context, const Step& step, size_t* bytes) {
  return std::visit(
      plan::EachOf{
          [&](const PermuteArgs& args) { return permute_workspace_size(context, args, bytes); },
          [&](const CombineArgs& args) { return combine_workspace_size(context, args, bytes); },
          [&](const CombineGradArgs& args) {
            return combine_grad_workspace_size(context, args, bytes);
          },
          [&](const ActivateArgs& args) { return activate_workspace_size(context, args, bytes); },
          [&](const ActivateGradArgs& args) {
            return activate_grad_workspace_size(context, args, bytes);
          },
          [&](const GmmArgs& args) { return gmm_workspace_size(context, args, bytes); },
          [&](const TgmmArgs& args) { return tgmm_workspace_size(context, args, bytes); },
          [&](const BiasGradArgs& args) { return bias_grad_workspace_size(context, args, bytes); }},
      step.call);
}

/// An op's error, with what it was to compute in front.
Status within(const Step& step, const Status& status) {
  if (status.ok()) return status;
  return {status.code(), text(kName, ": ", step.what, ": ", status.message())};
}

/// Hands out the workspace's room from its aligned start.
class Scratch {
 public:
  Scratch(void* start, Device device) : start_(static_cast<char*>(start)), device_(device) {}

  TensorView matrix(DType dtype, int64_t rows, int64_t cols) {
    const TensorView view = TensorView::contiguous(start_ + bytes_, dtype, {rows, cols}, device_);
    bytes_ += aligned(static_cast<size_t>(rows * cols) * size_of(dtype));
    return view;
  }
  size_t bytes() const { return bytes_; }

 private:
  char* start_;
  Device device_;
  size_t bytes_ = 0;
};

/// The same memory, which held elements as large or larger, with another type.
TensorView as_type(const TensorView& matrix, DType dtype) {
  return TensorView::contiguous(matrix.data, dtype, {matrix.shape[0], matrix.shape[1]},
                                matrix.device);
}

/// Column `col` of a matrix, as a vector and as a matrix of one column.
TensorView column(const TensorView& matrix, int64_t col) {
  TensorView view = TensorView::strided(
      static_cast<char*>(matrix.data) + col * static_cast<int64_t>(size_of(matrix.dtype)),
      matrix.dtype, {matrix.shape[0]}, {matrix.strides[0]}, matrix.device);
  return view;
}

/// A pass of a layer: its arguments, and the steps of each of its passes over `scratch`.
struct Layer {
  const MoeMlpWeights& weights;
  const MoeMlpOptions& options;
  MoeDims dims{};

  bool weighs_output(const MoeMlpRouting& routing) const {
    return routing.weights.given() && !options.weights_on_input;
  }

  /// Tokens in the order of the experts, scaled where weights apply to the input.
  Step gather_tokens(std::string_view what, const TensorView& x, const MoeMlpRouting& routing,
                     const TensorView& rows) const {
    if (!routing.weights.given() || !options.weights_on_input) {
      return {what, PermuteArgs{.x = x, .source_row = routing.source_row, .out = rows}};
    }
    return {what, CombineGradArgs{.dout = x,
                                  .slot_row = routing.slot_row,
                                  .source_row = routing.source_row,
                                  .weights = routing.weights,
                                  .dy = rows}};
  }

  Steps forward(const MoeMlpForwardArgs& args, Scratch& scratch) const {
    const MoeMlpRouting& routing = args.routing;
    const DType dtype = args.x.dtype;
    const TensorView rows = scratch.matrix(dtype, dims.m, dims.h);
    const TensorView preact =
        args.preact.given() ? args.preact : scratch.matrix(dtype, dims.m, dims.full);
    const TensorView inner = scratch.matrix(dtype, dims.m, dims.i);
    const TensorView y = rows;  // the first product has read them
    const TensorView& weights_of_sum = options.weights_on_input ? kNothing : routing.weights;
    return {gather_tokens("x", args.x, routing, rows),
            {"w13", GmmArgs{.lhs = rows,
                            .rhs = weights.w13,
                            .group_sizes = routing.group_sizes,
                            .out = preact,
                            .transpose_rhs = !weights.transposed,
                            .bias = weights.bias13,
                            .group_offset = routing.group_offset,
                            .packed_rhs = weights.packed_w13}},
            {"activation",
             ActivateArgs{.preact = preact, .activation = options.activation, .out = inner}},
            {"w2", GmmArgs{.lhs = inner,
                           .rhs = weights.w2,
                           .group_sizes = routing.group_sizes,
                           .out = y,
                           .transpose_rhs = !weights.transposed,
                           .bias = weights.bias2,
                           .group_offset = routing.group_offset,
                           .packed_rhs = weights.packed_w2}},
            {"out", CombineArgs{.y = y,
                                .slot_row = routing.slot_row,
                                .weights = weights_of_sum,
                                .shared = args.shared,
                                .residual = args.residual,
                                .out = args.out}}};
  }

  /// dw2 from rows of dout, which must lie in `wide`; dw13 from rows of x, which replace them.
  void add_weight_gradients(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args,
                            const TensorView& wide, const TensorView& d_preact,
                            const TensorView& activated, Steps* steps) const {
    const MoeMlpRouting& routing = saved.routing;
    const auto gradient = [&](const TensorView& results, const TensorView& inputs,
                              const GroupedTensor& out) {
      return TgmmArgs{.lhs = weights.transposed ? inputs : results,
                      .rhs = weights.transposed ? results : inputs,
                      .group_sizes = routing.group_sizes,
                      .out = out,
                      .beta = args.dw_beta,
                      .group_offset = routing.group_offset};
    };
    if (args.dw2.given()) {
      steps->push_back({"dw2", gradient(as_type(wide, args.dout.dtype), activated, args.dw2)});
    }
    if (args.dw13.given()) {
      const TensorView rows = as_type(wide, saved.x.dtype);
      steps->push_back(gather_tokens("dw13", saved.x, routing, rows));
      steps->push_back({"dw13", gradient(d_preact, rows, args.dw13)});
    }
  }

  /// Room for rows of dout, of x and of dx, one after the other.
  TensorView wide_rows(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args,
                       Scratch& scratch) const {
    const bool dout_is_wider = size_of(args.dout.dtype) > size_of(saved.x.dtype);
    return scratch.matrix(dout_is_wider ? args.dout.dtype : saved.x.dtype, dims.m, dims.h);
  }

  Step gather_dout(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args,
                   const TensorView& wide) const {
    return {"dout", PermuteArgs{.x = args.dout,
                                .source_row = saved.routing.source_row,
                                .out = as_type(wide, args.dout.dtype)}};
  }

  Steps backward_dw(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args,
                    Scratch& scratch) const {
    Steps steps;
    const TensorView wide = wide_rows(saved, args, scratch);
    if (args.dw2.given()) steps.push_back(gather_dout(saved, args, wide));
    add_weight_gradients(saved, args, wide, args.d_preact, args.activated, &steps);
    return steps;
  }

  Steps backward(const MoeMlpSaved& saved, const MoeMlpBackwardArgs& args, bool delayed,
                 Scratch& scratch) const {
    const MoeMlpRouting& routing = saved.routing;
    const DType dtype = saved.x.dtype;
    const bool weighs = weighs_output(routing);
    const bool wants_rows = args.dx.given() || (args.dweights.given() && !weighs);
    const bool wants_d_preact =
        wants_rows || args.dw13.given() || args.dbias13.given() || args.d_preact.given();
    const bool wants_activated = args.dw2.given() || args.activated.given();
    const bool wants_dots = args.dweights.given() && weighs;
    const bool wants_bias_dots = wants_dots && weights.bias2.given();
    Steps steps;
    if (!wants_d_preact && !wants_activated && !wants_dots && !args.dbias2.given()) return steps;

    const TensorView wide = wide_rows(saved, args, scratch);
    const TensorView dy = as_type(wide, args.dout.dtype);
    const bool f64 =
        dtype == DType::kF64 || (routing.weights.given() && routing.weights.dtype == DType::kF64);
    const DType number = f64 ? DType::kF64 : DType::kF32;
    steps.push_back(gather_dout(saved, args, wide));
    TensorView row_weight;
    if (weighs) {
      const TensorView column_of_weights = scratch.matrix(number, dims.m, 1);
      row_weight = column(column_of_weights, 0);
      steps.push_back({"weights", CombineGradArgs{.slot_row = routing.slot_row,
                                                  .source_row = routing.source_row,
                                                  .weights = routing.weights,
                                                  .dy = column_of_weights}});
    }
    // Of each row: the activation's part of the weight's gradient, and that of bias2.
    TensorView dots;
    if (wants_dots) dots = scratch.matrix(number, dims.m, wants_bias_dots ? 2 : 1);
    TensorView d_preact = args.d_preact;
    if (wants_d_preact && !d_preact.given()) d_preact = scratch.matrix(dtype, dims.m, dims.full);
    TensorView activated = args.activated;
    if (wants_activated && !activated.given()) activated = scratch.matrix(dtype, dims.m, dims.i);
    if (wants_d_preact || wants_activated || wants_dots) {
      const TensorView d_inner = scratch.matrix(dtype, dims.m, dims.i);
      steps.push_back({"w2", GmmArgs{.lhs = dy,
                                     .rhs = weights.w2,
                                     .group_sizes = routing.group_sizes,
                                     .out = d_inner,
                                     .transpose_rhs = weights.transposed,
                                     .group_offset = routing.group_offset}});
      steps.push_back(
          {"activation", ActivateGradArgs{.preact = saved.preact,
                                          .grad = d_inner,
                                          .row_scale = row_weight,
                                          .activation = options.activation,
                                          .d_preact = wants_d_preact ? d_preact : kNothing,
                                          .activated = wants_activated ? activated : kNothing,
                                          .row_dot = wants_dots ? column(dots, 0) : kNothing}});
    }
    if (args.dbias2.given() || wants_bias_dots) {
      steps.push_back(
          {"dbias2", BiasGradArgs{.dy = dy,
                                  .group_sizes = routing.group_sizes,
                                  .dbias = args.dbias2,
                                  .dbias_scale = wants_bias_dots ? column(dots, 1) : kNothing,
                                  .bias = weights.bias2,
                                  .bias_scale = row_weight,
                                  .accumulate = args.accumulate_dbias,
                                  .group_offset = routing.group_offset}});
    }
    if (args.dbias13.given()) {
      steps.push_back({"dbias13", BiasGradArgs{.dy = d_preact,
                                               .group_sizes = routing.group_sizes,
                                               .dbias = args.dbias13,
                                               .accumulate = args.accumulate_dbias,
                                               .group_offset = routing.group_offset}});
    }
    if (wants_dots) {
      steps.push_back(
          {"dweights",
           CombineGradArgs{.slot_row = routing.slot_row, .y = dots, .dweights = args.dweights}});
    }
    if (!delayed) add_weight_gradients(saved, args, wide, d_preact, activated, &steps);
    if (!wants_rows) return steps;
    const TensorView dx_rows = as_type(wide, dtype);
    steps.push_back({"dx", GmmArgs{.lhs = d_preact,
                                   .rhs = weights.w13,
                                   .group_sizes = routing.group_sizes,
                                   .out = dx_rows,
                                   .transpose_rhs = weights.transposed,
                                   .group_offset = routing.group_offset}});
    if (args.dx.given()) {
      steps.push_back({"dx", CombineArgs{.y = dx_rows,
                                         .slot_row = routing.slot_row,
                                         .weights = weighs ? kNothing : routing.weights,
                                         .out = args.dx}});
    }
    if (args.dweights.given() && !weighs) {
      steps.push_back({"dweights", CombineGradArgs{.dout = saved.x,
                                                   .slot_row = routing.slot_row,
                                                   .y = dx_rows,
                                                   .dweights = args.dweights}});
    }
    return steps;
  }

  static inline const TensorView kNothing{};
};

/// Memory that a CPU call keeps between its ops, and the thread between its calls.
class HostBuffer {
 public:
  static void* of_this_thread(size_t bytes) {
    static PerThread<HostBuffer> buffers;
    HostBuffer* const buffer = buffers.get();
    if (buffer == nullptr) throw std::bad_alloc();
    if (buffer->bytes_ < bytes) {
      buffer->data_.reset();
      buffer->bytes_ = 0;
      buffer->data_.reset(new std::byte[bytes]);
      buffer->bytes_ = bytes;
    }
    return buffer->data_.get();
  }

 private:
  std::unique_ptr<std::byte[]> data_;
  size_t bytes_ = 0;
};

struct PassBytes {
  size_t tensors = 0;  ///< between the ops
  size_t op = 0;       ///< the largest need of one of them

  /// Room for aligning the start included.
  size_t total() const { return tensors + op == 0 ? 0 : tensors + op + kAlignment; }
};

template <typename Change>
void change_options(Step* step, Change change) {
  std::visit([&](auto& args) { change(args.options); }, step->call);
}

/// Checks every step of `make_steps(Scratch&)`.
template <typename MakeSteps>
Status check_pass(Context& context, const MoeDims& dims, const CallOptions& options,
                  MakeSteps make_steps, PassBytes* bytes) {
  Scratch scratch(reinterpret_cast<void*>(kMadeUpAddress), dims.device);
  Steps steps = make_steps(scratch);
  bytes->tensors = scratch.bytes();
  for (Step& step : steps) {
    change_options(&step, [&](CallOptions& own) {
      own = options;
      own.workspace = nullptr;
      own.workspace_size_bytes = 0;
    });
    size_t needed = 0;
    if (Status status = within(step, workspace_size(context, step, &needed)); !status.ok()) {
      return status;
    }
    bytes->op = std::max(bytes->op, needed);
  }
  return {};
}

/// Checks, finds the memory, runs.
template <typename MakeSteps>
Status run_pass(Context& context, const MoeDims& dims, const CallOptions& options,
                MakeSteps make_steps) {
  PassBytes bytes;
  Status status = check_pass(context, dims, options, make_steps, &bytes);
  if (!status.ok()) return status;
  const bool on_host = dims.device.kind == DeviceKind::kCpu;
  void* memory = options.workspace;
  if (memory == nullptr && !on_host && bytes.total() > 0) {
    return Status::invalid(text(kName, ": options.workspace = null, expected ", bytes.total(),
                                " bytes on ", ops::device_name(dims.device)));
  }
  if (memory != nullptr && options.workspace_size_bytes < bytes.total()) {
    return Status::invalid(text(kName,
                                ": options.workspace_size_bytes = ", options.workspace_size_bytes,
                                ", expected at least ", bytes.total()));
  }
  if (memory == nullptr && bytes.total() > 0) memory = HostBuffer::of_this_thread(bytes.total());
  memory = reinterpret_cast<void*>(aligned(reinterpret_cast<uintptr_t>(memory)));
  Scratch scratch(memory, dims.device);
  Steps steps = make_steps(scratch);
  for (Step& step : steps) {
    change_options(&step, [&](CallOptions& own) {
      own = options;
      own.workspace = bytes.op > 0 ? static_cast<char*>(memory) + bytes.tensors : nullptr;
      own.workspace_size_bytes = bytes.op;
    });
    if (status = within(step, run(context, step)); !status.ok()) return status;
  }
  return {};
}

}  // namespace

MoeMlp::MoeMlp(const MoeMlpWeights& weights, const MoeMlpOptions& options)
    : weights_(weights), options_(options) {}

Status MoeMlp::forward(Context& context, const MoeMlpForwardArgs& args, MoeMlpSaved* saved) const {
  return ops::guarded(kName, [&]() -> Status {
    Layer layer{weights_, options_};
    Status status = check_moe_forward(weights_, options_, args, &layer.dims);
    if (!status.ok()) return status;
    status = run_pass(context, layer.dims, args.options,
                      [&](Scratch& scratch) { return layer.forward(args, scratch); });
    if (status.ok() && saved != nullptr) {
      *saved = {.x = args.x, .preact = args.preact, .routing = args.routing};
    }
    return status;
  });
}

Status MoeMlp::forward_workspace_size(Context& context, const MoeMlpForwardArgs& args,
                                      size_t* size_bytes) const {
  return ops::guarded(kName, [&]() -> Status {
    *size_bytes = 0;
    Layer layer{weights_, options_};
    Status status = check_moe_forward(weights_, options_, args, &layer.dims);
    if (!status.ok()) return status;
    PassBytes bytes;
    status = check_pass(
        context, layer.dims, args.options,
        [&](Scratch& scratch) { return layer.forward(args, scratch); }, &bytes);
    if (status.ok()) *size_bytes = bytes.total();
    return status;
  });
}

Status MoeMlp::backward(Context& context, const MoeMlpSaved& saved,
                        const MoeMlpBackwardArgs& args) {
  return ops::guarded(kName, [&]() -> Status {
    const bool delayed = options_.delay_wgrad;
    Layer layer{weights_, options_};
    Status status = check_moe_backward(weights_, options_, saved, args, delayed, &layer.dims);
    if (!status.ok()) return status;
    const bool leaves_wgrad = delayed && (args.dw13.given() || args.dw2.given());
    if (leaves_wgrad) {
      PassBytes unused;
      status = check_pass(
          context, layer.dims, args.options,
          [&](Scratch& scratch) { return layer.backward_dw(saved, args, scratch); }, &unused);
      if (!status.ok()) return status;
    }
    status = run_pass(context, layer.dims, args.options, [&](Scratch& scratch) {
      return layer.backward(saved, args, delayed, scratch);
    });
    if (status.ok() && leaves_wgrad) pending_.push_back({saved, args});
    return status;
  });
}

Status MoeMlp::backward_workspace_size(Context& context, const MoeMlpSaved& saved,
                                       const MoeMlpBackwardArgs& args, size_t* size_bytes) const {
  return ops::guarded(kName, [&]() -> Status {
    *size_bytes = 0;
    const bool delayed = options_.delay_wgrad;
    Layer layer{weights_, options_};
    Status status = check_moe_backward(weights_, options_, saved, args, delayed, &layer.dims);
    if (!status.ok()) return status;
    PassBytes now;
    status = check_pass(
        context, layer.dims, args.options,
        [&](Scratch& scratch) { return layer.backward(saved, args, delayed, scratch); }, &now);
    PassBytes later;
    if (status.ok() && delayed && (args.dw13.given() || args.dw2.given())) {
      status = check_pass(
          context, layer.dims, args.options,
          [&](Scratch& scratch) { return layer.backward_dw(saved, args, scratch); }, &later);
    }
    if (status.ok()) *size_bytes = std::max(now.total(), later.total());
    return status;
  });
}

Status MoeMlp::weight_gradients(Context& context, const MoeMlpSaved& saved,
                                const MoeMlpBackwardArgs& args) const {
  return ops::guarded(kName, [&]() -> Status {
    Layer layer{weights_, options_};
    Status status = check_moe_backward(weights_, options_, saved, args, true, &layer.dims);
    if (!status.ok()) return status;
    return run_pass(context, layer.dims, args.options,
                    [&](Scratch& scratch) { return layer.backward_dw(saved, args, scratch); });
  });
}

Status MoeMlp::backward_dw(Context& context, const CallOptions& options) {
  if (pending_.empty()) return {};
  Pending oldest = std::move(pending_.front());
  pending_.pop_front();
  oldest.args.options = options;
  return weight_gradients(context, oldest.saved, oldest.args);
}

}  // namespace cadre
