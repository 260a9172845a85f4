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
                                      "int packed_w13, int packed_w2, "
                                      "ScalarType? out_dtype) -> (Tensor, Tensor)";
/// The gradients of x, weights, w13, w2, bias13 and bias2 that are wanted, in this order; those of
/// the parameters stacked.
constexpr const char* kMoeMlpGradSchema =
    "moe_mlp_grad(" CADRE_TORCH_EXPERTS ", Tensor preact, Tensor dout, bool[] wanted) -> Tensor[]";

/// All gradients into given tensors, one or none in each list but those of the weights, to which
/// dw_beta times what they hold is added. phase: a BackwardPhase.
constexpr const char* kMoeMlpGradIntoSchema =
    "moe_mlp_grad_into(" CADRE_TORCH_EXPERTS
    ", Tensor preact, Tensor dout, float dw_beta, int phase, Tensor(a!)[] dx, "
    "Tensor(b!)[] dweights, Tensor(c!)[] dw13, Tensor(d!)[] dw2, Tensor(e!)[] dbias13, "
    "Tensor(f!)[] dbias2, Tensor(g!)[] d_preact, Tensor(h!)[] activated) -> ()";

#undef CADRE_TORCH_EXPERTS

/// kWithoutWeights writes d_preact and activated for a later kWeightsAlone.
enum BackwardPhase : int64_t { kWhole = 0, kWithoutWeights = 1, kWeightsAlone = 2 };

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

  /// Columns of the pre-activation.
  int64_t preact_columns() const {
    return args.transposed != 0 ? (*w13_).cols.uniform : (*w13_).rows.uniform;
  }

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

inline std::tuple<Tensor, Tensor> moe_mlp(
    Tensor x, std::vector<Tensor> w13, std::vector<Tensor> w2, std::vector<Tensor> bias13,
    std::vector<Tensor> bias2, Tensor group_sizes, Tensor source_row, Tensor slot_row,
    OptionalTensor weights, OptionalTensor group_offset_tensor, int64_t group_offset,
    bool transposed, int64_t activation, bool interleaved, std::vector<double> clamp,
    bool weights_on_input, OptionalTensor shared, OptionalTensor residual, bool keeps_preact,
    int64_t packed_w13, int64_t packed_w2, std::optional<ScalarType> out_dtype) {
  const Groups groups{group_sizes, false, group_offset_tensor, group_offset};
  ExpertsCall experts(x, w13, w2, bias13, bias2, groups, source_row, slot_row, weights);
  experts.args.transposed = transposed;
  experts.args.weights_on_input = weights_on_input;
  experts.args.activation = activation_of(activation, interleaved, clamp);
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
  experts.args.packed_w13 = reinterpret_cast<const cadre_packed_weights*>(packed_w13);
  experts.args.packed_w2 = reinterpret_cast<const cadre_packed_weights*>(packed_w2);
  experts.run(cadre_moe_mlp_forward, cadre_moe_mlp_forward_workspace_size);
  return {out, preact};
}

inline OptionalTensor first_of(const std::vector<Tensor>& tensors) {
  return tensors.empty() ? OptionalTensor() : OptionalTensor(tensors[0]);
}

inline void moe_mlp_grad_into(Tensor x, std::vector<Tensor> w13, std::vector<Tensor> w2,
                              std::vector<Tensor> bias13, std::vector<Tensor> bias2,
                              Tensor group_sizes, Tensor source_row, Tensor slot_row,
                              OptionalTensor weights, OptionalTensor group_offset_tensor,
                              int64_t group_offset, bool transposed, int64_t activation,
                              bool interleaved, std::vector<double> clamp, bool weights_on_input,
                              Tensor preact, Tensor dout, double dw_beta, int64_t phase,
                              std::vector<Tensor> dx, std::vector<Tensor> dweights,
                              std::vector<Tensor> dw13, std::vector<Tensor> dw2,
                              std::vector<Tensor> dbias13, std::vector<Tensor> dbias2,
                              std::vector<Tensor> d_preact, std::vector<Tensor> activated) {
  constexpr auto kMatrices = GroupedView::Form::kMatrices;
  constexpr auto kVectors = GroupedView::Form::kVectors;
  const Groups groups{group_sizes, false, group_offset_tensor, group_offset};
  ExpertsCall experts(x, w13, w2, bias13, bias2, groups, source_row, slot_row, weights);
  experts.args.activation = activation_of(activation, interleaved, clamp);
  const cadre_tensor preact_view = view(preact);
  const cadre_tensor dout_view = view(dout);
  const OptionalView dx_view(first_of(dx));
  const OptionalView dweights_view(first_of(dweights));
  const OptionalView d_preact_view(first_of(d_preact));
  const OptionalView activated_view(first_of(activated));
  const GroupedView dw13_view("moe_mlp", "dw13", dw13, kMatrices);
  const GroupedView dw2_view("moe_mlp", "dw2", dw2, kMatrices);
  const GroupedView dbias13_view("moe_mlp", "dbias13", dbias13, kVectors);
  const GroupedView dbias2_view("moe_mlp", "dbias2", dbias2, kVectors);
  cadre_moe_mlp_args& args = experts.args;
  args.transposed = transposed;
  args.weights_on_input = weights_on_input;
  args.delay_wgrad = phase != kWhole;
  args.preact = &preact_view;
  args.dout = &dout_view;
  args.dx = dx_view.get();
  args.dweights = dweights_view.get();
  args.dw13 = dw13_view.get();
  args.dw2 = dw2_view.get();
  args.dw_beta = dw_beta;
  args.dbias13 = dbias13_view.get();
  args.dbias2 = dbias2_view.get();
  args.d_preact = d_preact_view.get();
  args.activated = activated_view.get();
  experts.run(phase == kWeightsAlone ? cadre_moe_mlp_backward_dw : cadre_moe_mlp_backward,
              cadre_moe_mlp_backward_workspace_size);
}

inline std::vector<Tensor> moe_mlp_grad(Tensor x, std::vector<Tensor> w13, std::vector<Tensor> w2,
                                        std::vector<Tensor> bias13, std::vector<Tensor> bias2,
                                        Tensor group_sizes, Tensor source_row, Tensor slot_row,
                                        OptionalTensor weights, OptionalTensor group_offset_tensor,
                                        int64_t group_offset, bool transposed, int64_t activation,
                                        bool interleaved, std::vector<double> clamp,
                                        bool weights_on_input, Tensor preact, Tensor dout,
                                        std::vector<bool> wanted) {
  if (wanted.size() != 6) fail(CADRE_INVALID, "moe_mlp: len(wanted), expected 6");
  const auto like = [](const Tensor& tensor) {
    return std::vector<int64_t>(tensor.sizes().begin(), tensor.sizes().end());
  };
  // The gradient of all groups' parameters is one tensor, whatever form these have.
  const auto stacked = [&](const std::vector<Tensor>& tensors, int64_t rank) {
    std::vector<int64_t> shape = like(tensors.at(0));
    if (tensors[0].dim() == rank) {
      shape.insert(shape.begin(), static_cast<int64_t>(tensors.size()));
    }
    return shape;
  };
  std::vector<Tensor> made[6];
  const auto make = [&](size_t place, const std::vector<int64_t>& shape, const Tensor& tensor) {
    made[place].push_back(empty(x, shape, tensor.scalar_type()));
  };
  if (wanted[0]) make(0, like(x), x);
  if (wanted[1]) make(1, like(slot_row), weights ? *weights : x);
  if (wanted[2]) make(2, stacked(w13, 2), w13[0]);
  if (wanted[3]) make(3, stacked(w2, 2), w2[0]);
  if (wanted[4]) make(4, stacked(bias13, 1), bias13[0]);
  if (wanted[5]) make(5, stacked(bias2, 1), bias2[0]);
  moe_mlp_grad_into(x, w13, w2, bias13, bias2, group_sizes, source_row, slot_row, weights,
                    group_offset_tensor, group_offset, transposed, activation, interleaved, clamp,
                    weights_on_input, preact, dout, 0.0, kWhole, made[0], made[1], made[2], made[3],
                    made[4], made[5], {}, {});
  std::vector<Tensor> results;
  for (const std::vector<Tensor>& each : made) {
    results.insert(results.end(), each.begin(), each.end());
  }
  return results;
}

}  // namespace cadre_torch
