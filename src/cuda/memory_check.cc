// Checks the pointers of a call. One look-up takes a fraction of a microsecond, so a list of
// pointers is judged by its first and its last one.
#include "cuda/memory_check.h"

namespace cadre::cuda {
namespace {

/// Keeps the first failure.
class PointerChecks {
 public:
  explicit PointerChecks(const Launch& launch) : launch_(launch) {}

  void pointer(std::string_view argument, const void* data) {
    if (status_.ok()) status_ = check_pointer(launch_.op, argument, data, *launch_.device);
  }
  void view(std::string_view argument, const TensorView& view) {
    for (int32_t i = 0; i < view.rank; ++i) {
      if (view.shape[static_cast<size_t>(i)] == 0)
        return;  // an empty tensor's pointer means nothing
    }
    if (view.given()) pointer(argument, view.data);
  }
  void sizes(std::string_view argument, const GroupSizes& sizes) {
    if (sizes.device.kind == DeviceKind::kCuda && sizes.count > 0) pointer(argument, sizes.data);
  }
  void extent(std::string_view argument, const Extent& extent) {
    if (extent.varies()) sizes(argument, extent.per_group);
  }
  void tensor(std::string_view argument, const GroupedTensor& tensor) {
    if (!tensor.given()) return;
    extent(argument, tensor.rows);
    extent(argument, tensor.cols);
    extent(argument, tensor.offsets);
    const bool empty = (!tensor.rows.varies() && tensor.rows.uniform == 0) ||
                       (!tensor.cols.varies() && tensor.cols.uniform == 0) ||
                       (tensor.placement != Placement::kRows && tensor.num_groups == 0);
    if (empty) return;
    if (tensor.placement != Placement::kList) {
      pointer(argument, tensor.data);
    } else if (tensor.pointers_device.kind == DeviceKind::kCuda) {
      pointer(argument, static_cast<const void*>(tensor.pointers));
    } else {
      pointer(argument, tensor.pointers[0]);
      pointer(argument, tensor.pointers[tensor.num_groups - 1]);
    }
  }
  void scales(std::string_view argument, const Scales& scales, int64_t num_groups) {
    if (scales.pointers == nullptr) {
      if (scales.given()) view(argument, scales.values);
    } else if (scales.pointers_device.kind == DeviceKind::kCuda) {
      pointer(argument, static_cast<const void*>(scales.pointers));
    } else if (num_groups > 0) {
      pointer(argument, scales.pointers[0]);
    }
  }
  void offset(const GroupOffset& offset) { pointer("group_offset", offset.device_value); }

  const Status& status() const { return status_; }

 private:
  const Launch& launch_;
  Status status_;
};

}  // namespace

Status check_memory(const Launch& launch, const plan::Operands& operands,
                    const CallOptions& options) {
  PointerChecks checks(launch);
  checks.tensor("lhs", operands.lhs);
  checks.tensor("rhs", operands.rhs);
  checks.scales("lhs.scales", operands.lhs_scales, operands.lhs.num_groups);
  checks.scales("rhs.scales", operands.rhs_scales, operands.rhs.num_groups);
  checks.view("lhs_rows", operands.lhs_index);
  checks.view("rhs_rows", operands.rhs_index);
  checks.tensor("out", operands.out);
  if (operands.epilogue.c.data != operands.out.data ||
      operands.epilogue.c.pointers != operands.out.pointers) {
    checks.tensor("c", operands.epilogue.c);
  }
  checks.tensor("bias", operands.epilogue.bias);
  checks.view("bias_scale", operands.epilogue.bias_scale);
  checks.view("row_scale", operands.epilogue.row_scale);
  checks.view("preactivation", operands.epilogue.preactivation);
  checks.view("preact", operands.epilogue.gradient.preact);
  checks.view("d_preact", operands.epilogue.gradient.d_preact);
  checks.view("row_scale", operands.epilogue.gradient.row_scale);
  checks.view("row_dot", operands.epilogue.gradient.row_dot);
  checks.view("alpha", operands.epilogue.alpha.per_group);
  checks.view("beta", operands.epilogue.beta.per_group);
  checks.sizes("group_sizes", operands.group_sizes);
  checks.offset(operands.group_offset);
  checks.pointer("options.workspace", options.workspace);
  return checks.status();
}

Status check_memory(const Launch& launch, const plan::RowCall& call, const CallOptions& options) {
  PointerChecks checks(launch);
  std::visit(plan::EachOf{[&](const RouteArgs* args) {
                            checks.view("expert_ids", args->expert_ids);
                            checks.view("group_sizes", args->group_sizes);
                            checks.view("source_row", args->source_row);
                            checks.view("slot_row", args->slot_row);
                          },
                          [&](const PermuteArgs* args) {
                            checks.view("x", args->x);
                            checks.view("source_row", args->source_row);
                            checks.view("slot_row", args->slot_row);
                            checks.view("out", args->out);
                          },
                          [&](const CombineArgs* args) {
                            checks.view("y", args->y);
                            checks.view("slot_row", args->slot_row);
                            checks.view("weights", args->weights);
                            checks.view("shared", args->shared);
                            checks.view("residual", args->residual);
                            checks.view("out", args->out);
                          },
                          [&](const CombineGradArgs* args) {
                            checks.view("dout", args->dout);
                            checks.view("slot_row", args->slot_row);
                            checks.view("source_row", args->source_row);
                            checks.view("weights", args->weights);
                            checks.view("y", args->y);
                            checks.view("dy", args->dy);
                            checks.view("dweights", args->dweights);
                          },
                          [&](const SelectExpertsArgs* args) {
                            checks.view("logits", args->logits);
                            checks.view("correction_bias", args->correction_bias);
                            checks.view("expert_ids", args->expert_ids);
                            checks.view("weights", args->weights);
                          },
                          [&](const SelectExpertsGradArgs* args) {
                            checks.view("logits", args->logits);
                            checks.view("expert_ids", args->expert_ids);
                            checks.view("dweights", args->dweights);
                            checks.view("dlogits", args->dlogits);
                          },
                          [&](const ActivateArgs* args) {
                            checks.view("preact", args->preact);
                            checks.view("out", args->out);
                          },
                          [&](const ActivateGradArgs* args) {
                            checks.view("preact", args->preact);
                            checks.view("grad", args->grad);
                            checks.view("row_scale", args->row_scale);
                            checks.view("d_preact", args->d_preact);
                            checks.view("activated", args->activated);
                            checks.view("row_dot", args->row_dot);
                          },
                          [&](const QuantizeArgs* args) {
                            checks.view("x", args->x);
                            checks.view("source_row", args->source_row);
                            checks.view("row_scale", args->row_scale);
                            checks.sizes("group_sizes", args->group_sizes);
                            checks.view("rows", args->rows);
                            checks.view("rows.scales", args->rows.scales.values);
                            checks.view("columns", args->columns);
                            checks.view("columns.scales", args->columns.scales.values);
                          },
                          [&](const DequantizeArgs* args) {
                            checks.view("x", args->x);
                            checks.view("x.scales", args->x.scales.values);
                            checks.sizes("group_sizes", args->group_sizes);
                            checks.view("out", args->out);
                          },
                          [&](const AmaxArgs* args) {
                            checks.view("x", args->x);
                            checks.sizes("group_sizes", args->group_sizes);
                            checks.view("out", args->out);
                          }},
             call);
  checks.pointer("options.workspace", options.workspace);
  return checks.status();
}

Status check_memory(const Launch& launch, const BiasGradArgs& args) {
  PointerChecks checks(launch);
  checks.view("dy", args.dy);
  checks.tensor("dbias", args.dbias);
  checks.view("dbias_scale", args.dbias_scale);
  checks.tensor("bias", args.bias);
  checks.view("bias_scale", args.bias_scale);
  checks.sizes("group_sizes", args.group_sizes);
  checks.offset(args.group_offset);
  checks.pointer("options.workspace", args.options.workspace);
  return checks.status();
}

}  // namespace cadre::cuda
