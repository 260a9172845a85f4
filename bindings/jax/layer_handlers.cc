// The handlers of a layer of experts: route, and MoeMlp's two passes.
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cadre/c_api.h"
#include "handler_call.h"

namespace cadre_jax {
namespace {

/// Operands that may be left out, as bits of the attribute `given`.
enum Given : int64_t { kRouting = 1, kWeights = 2, kBias13 = 4, kBias2 = 8 };
/// Gradients, as bits of the attribute `wanted`; results in this order.
enum Wanted : int64_t { kX = 1, kRouter = 2, kW13 = 4, kW2 = 8, kOfBias13 = 16, kOfBias2 = 32 };

/// expert_ids [t, top_k] -> group_sizes [num_experts], source_row [t * top_k], slot_row [t, top_k]
ffi::Error route(const Place& place, ffi::RemainingArgs args, ffi::RemainingRets rets,
                 const ffi::Dictionary& attributes) {
  const auto batch_rank = attribute<int64_t>(attributes, "batch_rank");
  const Operands operands(args, batch_rank, place.device);
  const std::vector<BatchedView> results = results_of(place, rets, batch_rank);
  const cadre_call_options options = options_for(place, 0);
  const std::vector<int64_t>& batch = results[0].batch();
  return for_each_entry(place, batch, [&](int64_t index) {
    const cadre_tensor ids = operands[0].tensor_at(index, batch);
    const cadre_tensor sizes = results[0].tensor_at(index, batch);
    const cadre_tensor source_row = results[1].tensor_at(index, batch);
    const cadre_tensor slot_row = results[2].tensor_at(index, batch);
    cadre_route_args call;
    cadre_route_args_init(&call, sizeof(call));
    call.expert_ids = &ids;
    call.group_sizes = &sizes;
    call.source_row = &source_row;
    call.slot_row = &slot_row;
    call.options = &options;
    return cadre_route(context(), &call);
  });
}

/// The arguments of one batch entry, and the views that they point to.
class LayerCall {
 public:
  LayerCall(const Place& place, const Operands& operands, const ffi::Dictionary& attributes,
            const cadre_call_options& options, const std::vector<int64_t>& batch, int64_t index)
      : operands_(operands), batch_(batch), index_(index) {
    cadre_moe_mlp_args_init(&args, sizeof(args));
    args.options = &options;
    args.transposed = attribute<bool>(attributes, "transposed");
    args.weights_on_input = attribute<bool>(attributes, "weights_on_input");
    args.activation.kind = static_cast<int32_t>(attribute<int64_t>(attributes, "activation"));
    args.activation.layout = attribute<bool>(attributes, "interleaved") ? CADRE_GATE_INTERLEAVED
                                                                        : CADRE_GATE_CONCATENATED;
    args.activation.alpha = attribute<double>(attributes, "alpha");
    args.activation.limit = attribute<double>(attributes, "limit");
    args.activation.up_offset = attribute<double>(attributes, "up_offset");
    args.x = tensor(next());
    args.w13 = matrices(next());
    args.w2 = matrices(next());
    set_groups(place, operands[next_], operands[next_ + 1], index, batch, &args);
    next_ += 2;
    const auto given = attribute<int64_t>(attributes, "given");
    if ((given & kRouting) != 0) {
      args.source_row = tensor(next());
      args.slot_row = tensor(next());
    }
    if ((given & kWeights) != 0) args.weights = tensor(next());
    if ((given & kBias13) != 0) args.bias13 = vectors(next());
    if ((given & kBias2) != 0) args.bias2 = vectors(next());
  }
  LayerCall(const LayerCall&) = delete;
  LayerCall& operator=(const LayerCall&) = delete;

  /// The operand behind those taken so far.
  const BatchedView& next() { return operands_[next_++]; }

  const cadre_tensor* tensor(const BatchedView& view) {
    return &(tensors_[num_tensors_++] = view.tensor_at(index_, batch_));
  }
  const cadre_grouped_tensor* matrices(const BatchedView& view) {
    const cadre_tensor stack = view.tensor_at(index_, batch_);
    return &(groups_[num_groups_++] = cadre_grouped_from_tensor(&stack));
  }
  const cadre_grouped_tensor* vectors(const BatchedView& view) {
    const cadre_tensor stack = view.tensor_at(index_, batch_);
    return &(groups_[num_groups_++] = cadre_grouped_vectors(&stack));
  }

  cadre_moe_mlp_args args;

 private:
  const Operands& operands_;
  const std::vector<int64_t>& batch_;
  int64_t index_;
  size_t next_ = 0;
  // x, source_row, slot_row, weights, preact, dout, dx, dweights; out
  std::array<cadre_tensor, 8> tensors_;
  // two weights, two biases and their gradients
  std::array<cadre_grouped_tensor, 8> groups_;
  size_t num_tensors_ = 0, num_groups_ = 0;
};

/// x [t, h], w13, w2, group_sizes, group_offset, then what `given` names -> out [t, h], and the
/// pre-activation [m, 2i] with `keeps_preact`
ffi::Error moe_mlp(const Place& place, ffi::RemainingArgs args, ffi::RemainingRets rets,
                   const ffi::Dictionary& attributes) {
  const auto batch_rank = attribute<int64_t>(attributes, "batch_rank");
  const Operands operands(args, batch_rank, place.device);
  const bool keeps_preact = attribute<bool>(attributes, "keeps_preact");
  const std::vector<BatchedView> results = results_of(place, rets, batch_rank);
  const cadre_call_options options =
      options_for(place, attribute<int64_t>(attributes, "precision"));
  const std::vector<int64_t>& batch = results[0].batch();
  return for_each_entry(place, batch, [&](int64_t index) {
    LayerCall call(place, operands, attributes, options, batch, index);
    call.args.out = call.tensor(results[0]);
    if (keeps_preact) call.args.preact = call.tensor(results[1]);
    return cadre_moe_mlp_forward(context(), &call.args);
  });
}

/// The operands of moe_mlp, the pre-activation and dout -> the gradients that `wanted` names
ffi::Error moe_mlp_grad(const Place& place, ffi::RemainingArgs args, ffi::RemainingRets rets,
                        const ffi::Dictionary& attributes) {
  const auto batch_rank = attribute<int64_t>(attributes, "batch_rank");
  const Operands operands(args, batch_rank, place.device);
  const auto wanted = attribute<int64_t>(attributes, "wanted");
  const std::vector<BatchedView> results = results_of(place, rets, batch_rank);
  const cadre_call_options options =
      options_for(place, attribute<int64_t>(attributes, "precision"));
  const std::vector<int64_t>& batch = results[0].batch();
  return for_each_entry(place, batch, [&](int64_t index) {
    LayerCall call(place, operands, attributes, options, batch, index);
    call.args.preact = call.tensor(call.next());
    call.args.dout = call.tensor(call.next());
    size_t result = 0;
    if ((wanted & kX) != 0) call.args.dx = call.tensor(results[result++]);
    if ((wanted & kRouter) != 0) call.args.dweights = call.tensor(results[result++]);
    if ((wanted & kW13) != 0) call.args.dw13 = call.matrices(results[result++]);
    if ((wanted & kW2) != 0) call.args.dw2 = call.matrices(results[result++]);
    if ((wanted & kOfBias13) != 0) call.args.dbias13 = call.vectors(results[result++]);
    if ((wanted & kOfBias2) != 0) call.args.dbias2 = call.vectors(results[result++]);
    return cadre_moe_mlp_backward(context(), &call.args);
  });
}

}  // namespace
}  // namespace cadre_jax

CADRE_JAX_HANDLERS(route);
CADRE_JAX_HANDLERS(moe_mlp);
CADRE_JAX_HANDLERS(moe_mlp_grad);
