// The experts of a layer for torch: forward, and all gradients that are asked for.
#pragma once

#include <tuple>

#include "grouped_view.h"

namespace cadre_torch {

#define CADRE_TORCH_EXPERTS                                                                    \
  "Tensor x, Tensor[] w13, Tensor[] w2, Tensor[] bias13, Tensor[] bias2, Tensor group_sizes, " \
  "Tensor source_row, Tensor slot_row, Tensor? weights, Tensor? group_offset_tensor, "         \
  "int group_offset, bool transposed, int activation, bool interleaved, float[] clamp, "       \
  "bool weights_on_input"

constexpr const char* kMoeMlpSchema = "moe_mlp(" CADRE_TORCH_EXPERTS
                                      ", Tensor? shared, Tensor? residual, bool keeps_preact, "
                                      "ScalarType? out_dtype) -> (Tensor, Tensor)";
/// The gradients of x, weights, w13, w2, bias13 and bias2 that are wanted, in this order; those of
/// the parameters stacked.
constexpr const char* kMoeMlpGradSchema =
    "moe_mlp_grad(" CADRE_TORCH_EXPERTS ", Tensor preact, Tensor dout, bool[] wanted) -> Tensor[]";

#undef CADRE_TORCH_EXPERTS

/// What both passes are told; the arrays and views that the struct points to.
class ExpertsCall {
 public:
  ExpertsCall(const Tensor& x, const std::vector<Tensor>& w13, const std::vector<Tensor>& w2,
              const std::vector<Tensor>& bias13, const std::vector<Tensor>& bias2,
              const Groups& groups, const Tensor& source_row, const Tensor& slot_row,
              const OptionalTensor& weights)
      : like_(x),
        x_(view(x)),
        w13_("moe_mlp", "w13", w13, GroupedView::Form::kMatrices),
        w2_("moe_mlp", "w2", w2, GroupedView::Form::kMatrices),
        bias13_("moe_mlp", "bias13", bias13, GroupedView::Form::kVectors),
        bias2_("moe_mlp", "bias2", bias2, GroupedView::Form::kVectors),
        sizes_("moe_mlp", "group_sizes", groups.sizes),
        source_row_(view(source_row)),
        slot_row_(view(slot_row)),
        weights_(weights) {
    expect_rank("moe_mlp", "x", x, 2);
    if (w13.empty()) fail(CADRE_INVALID, "moe_mlp: len(w13) = 0, expected at least 1");
    if (w2.empty()) fail(CADRE_INVALID, "moe_mlp: len(w2) = 0, expected at least 1");
    cadre_moe_mlp_args_init(&args, sizeof(args));
    args.x = &x_;
    args.w13 = w13_.get();
    args.w2 = w2_.get();
    args.bias13 = bias13_.get();
    args.bias2 = bias2_.get();
    args.group_sizes = sizes_.get();
    args.source_row = &source_row_;
    args.slot_row = &slot_row_;
    args.weights = weights_.get();
    set_group_offset(args, "moe_mlp", groups);
  }
  ExpertsCall(const ExpertsCall&) = delete;
  ExpertsCall& operator=(const ExpertsCall&) = delete;

  void set_activation(int64_t kind, bool interleaved, const std::vector<double>& clamp) {
    args.activation.kind = static_cast<int32_t>(kind);
    args.activation.layout = interleaved ? CADRE_GATE_INTERLEAVED : CADRE_GATE_CONCATENATED;
    if (clamp.size() != 3) return;
    args.activation.alpha = clamp[0];
    args.activation.limit = clamp[1];
    args.activation.up_offset = clamp[2];
  }

  /// Columns of the pre-activation.
  int64_t preact_columns() const {
    return args.transposed != 0 ? (*w13_).cols.uniform : (*w13_).rows.uniform;
  }
  const cadre_grouped_tensor& w13() const { return *w13_; }
  const cadre_grouped_tensor& w2() const { return *w2_; }

  /// On a GPU with a workspace of torch's, which is never smaller than what the ops share.
  void run(Call<cadre_moe_mlp_args> call, WorkspaceSize<cadre_moe_mlp_args> workspace_size) {
    cadre_call_options options;
    cadre_call_options_init(&options, sizeof(options));
    args.options = &options;
    OptionalTensor workspace;
    if (like_.is_cuda()) {
      options.stream = current_stream(like_.get_device_index());
      size_t size_bytes = 0;
      check(workspace_size(g_context, &args, &size_bytes));
      workspace =
          empty(like_, {static_cast<int64_t>(std::max<size_t>(size_bytes, 1))}, ScalarType::Byte);
      options.workspace = workspace->data_ptr();
      options.workspace_size_bytes = size_bytes;
    }
    check(call(g_context, &args));
  }

  cadre_moe_mlp_args args;

 private:
  const Tensor& like_;
  cadre_tensor x_;
  GroupedView w13_, w2_, bias13_, bias2_;
  SizesView sizes_;
  cadre_tensor source_row_, slot_row_;
  OptionalView weights_;
};

inline std::tuple<Tensor, Tensor> moe_mlp(Tensor x, std::vector<Tensor> w13, std::vector<Tensor> w2,
                                          std::vector<Tensor> bias13, std::vector<Tensor> bias2,
                                          Tensor group_sizes, Tensor source_row, Tensor slot_row,
                                          OptionalTensor weights,
                                          OptionalTensor group_offset_tensor, int64_t group_offset,
                                          bool transposed, int64_t activation, bool interleaved,
                                          std::vector<double> clamp, bool weights_on_input,
                                          OptionalTensor shared, OptionalTensor residual,
                                          bool keeps_preact, std::optional<ScalarType> out_dtype) {
  const Groups groups{group_sizes, false, group_offset_tensor, group_offset};
  ExpertsCall experts(x, w13, w2, bias13, bias2, groups, source_row, slot_row, weights);
  experts.args.transposed = transposed;
  experts.args.weights_on_input = weights_on_input;
  experts.set_activation(activation, interleaved, clamp);
  Tensor out = empty(x, {x.size(0), x.size(1)}, out_dtype ? *out_dtype : x.scalar_type());
  const int64_t kept_rows = keeps_preact ? source_row.numel() : 0;
  Tensor preact = empty(x, {kept_rows, experts.preact_columns()}, x.scalar_type());
  const cadre_tensor out_view = view(out);
  const cadre_tensor preact_view = view(preact);
  const OptionalView shared_view(shared);
  const OptionalView residual_view(residual);
  experts.args.out = &out_view;
  experts.args.shared = shared_view.get();
  experts.args.residual = residual_view.get();
  if (keeps_preact) experts.args.preact = &preact_view;
  experts.run(cadre_moe_mlp_forward, cadre_moe_mlp_forward_workspace_size);
  return {out, preact};
}

inline std::vector<Tensor> moe_mlp_grad(Tensor x, std::vector<Tensor> w13, std::vector<Tensor> w2,
                                        std::vector<Tensor> bias13, std::vector<Tensor> bias2,
                                        Tensor group_sizes, Tensor source_row, Tensor slot_row,
                                        OptionalTensor weights, OptionalTensor group_offset_tensor,
                                        int64_t group_offset, bool transposed, int64_t activation,
                                        bool interleaved, std::vector<double> clamp,
                                        bool weights_on_input, Tensor preact, Tensor dout,
                                        std::vector<bool> wanted) {
  const Groups groups{group_sizes, false, group_offset_tensor, group_offset};
  ExpertsCall experts(x, w13, w2, bias13, bias2, groups, source_row, slot_row, weights);
  experts.args.transposed = transposed;
  experts.args.weights_on_input = weights_on_input;
  experts.set_activation(activation, interleaved, clamp);
  const cadre_tensor preact_view = view(preact);
  const cadre_tensor dout_view = view(dout);
  experts.args.preact = &preact_view;
  experts.args.dout = &dout_view;

  std::vector<Tensor> results;
  const auto add = [&](size_t place, const std::vector<int64_t>& shape, ScalarType dtype) {
    if (!wanted.at(place)) return false;
    results.push_back(empty(x, shape, dtype));
    return true;
  };
  cadre_tensor dx, dweights, stack;
  cadre_grouped_tensor dw13, dw2, dbias13, dbias2;
  const auto newest = [&] { return view(results.back()); };
  if (add(0, {x.size(0), x.size(1)}, x.scalar_type())) {
    dx = newest();
    experts.args.dx = &dx;
  }
  if (add(1, {slot_row.size(0), slot_row.size(1)},
          weights ? weights->scalar_type() : x.scalar_type())) {
    dweights = newest();
    experts.args.dweights = &dweights;
  }
  const auto shape_of = [](const cadre_grouped_tensor& weight) {
    return std::vector<int64_t>{weight.num_groups, weight.rows.uniform, weight.cols.uniform};
  };
  if (add(2, shape_of(experts.w13()), w13[0].scalar_type())) {
    stack = newest();
    dw13 = cadre_grouped_from_tensor(&stack);
    experts.args.dw13 = &dw13;
  }
  if (add(3, shape_of(experts.w2()), w2[0].scalar_type())) {
    stack = newest();
    dw2 = cadre_grouped_from_tensor(&stack);
    experts.args.dw2 = &dw2;
  }
  const int64_t local = experts.w13().num_groups;
  if (wanted.at(4) && add(4, {local, experts.preact_columns()}, bias13.at(0).scalar_type())) {
    stack = newest();
    dbias13 = cadre_grouped_vectors(&stack);
    experts.args.dbias13 = &dbias13;
  }
  if (wanted.at(5) && add(5, {local, x.size(1)}, bias2.at(0).scalar_type())) {
    stack = newest();
    dbias2 = cadre_grouped_vectors(&stack);
    experts.args.dbias2 = &dbias2;
  }
  experts.run(cadre_moe_mlp_backward, cadre_moe_mlp_backward_workspace_size);
  return results;
}

}  // namespace cadre_torch
