// The planted faults of the row ops.
#include "backend/registry.h"
#include "cpu/row_indices.h"
#include "tests/contract/faulty_backend.h"

namespace cadre::contract {
namespace {

using cpu::index_at;

void swap_rows_of_an_expert(const RouteArgs& args) {
  for (int64_t row = 1; row < args.source_row.shape[0]; ++row) {
    const int64_t here = index_at(args.source_row, row);
    const int64_t before = index_at(args.source_row, row - 1);
    if (before < 0 || here <= before) continue;  // ascending tokens: of one expert
    cpu::set_index(args.source_row, row * args.source_row.strides[0], before);
    cpu::set_index(args.source_row, (row - 1) * args.source_row.strides[0], here);
    return;
  }
}

void add_first_row_for_dropped(const CombineArgs& args) {
  for (int64_t t = 0; t < args.out.shape[0]; ++t) {
    for (int64_t j = 0; j < args.slot_row.shape[1]; ++j) {
      if (index_at(args.slot_row, t, j) >= 0 || args.y.shape[0] == 0) continue;
      const int64_t last = args.y.shape[0] - 1;
      for (int64_t col = 0; col < args.out.shape[1]; ++col) {
        cpu::set_value(args.out, t, col,
                       cpu::value_at(args.out, t, col) + 0 * cpu::value_at(args.y, last, col));
      }
    }
  }
}

}  // namespace

Status FaultyBackend::run_rows(detail::ContextState& context, const plan::Problem& problem,
                               const plan::Config& config, const plan::RowCall& call,
                               const CallOptions& options) const {
  if (fault_ == Fault::kThrows) throw std::bad_alloc();
  plan::RowCall used = call;
  CombineGradArgs grad;
  if (const auto* args = std::get_if<const CombineGradArgs*>(&call);
      args != nullptr && fault_ == Fault::kCombineGradKeepsDropped && (*args)->dy.given()) {
    grad = **args;
    while (grad.dy.shape[0] > 0 && index_at(grad.source_row, grad.dy.shape[0] - 1) < 0) {
      --grad.dy.shape[0];
    }
    used = &grad;
  }
  ActivateArgs activate;
  if (const auto* args = std::get_if<const ActivateArgs*>(&call);
      args != nullptr && fault_ == Fault::kGateLayoutIgnored) {
    activate = **args;
    activate.activation.layout = GateLayout::kConcatenated;
    used = &activate;
  }
  ActivateGradArgs activate_grad;
  if (const auto* args = std::get_if<const ActivateGradArgs*>(&call)) {
    activate_grad = **args;
    if (fault_ == Fault::kGateLayoutIgnored) {
      activate_grad.activation.layout = GateLayout::kConcatenated;
    }
    if (fault_ == Fault::kActivateGradUnscaled) activate_grad.row_scale = {};
    used = &activate_grad;
  }
  const plan::Backend* reference = backend::Registry::instance().find("reference");
  Status status = reference->run_rows(context, problem, config, used, options);
  if (fault_ == Fault::kRouteUnstable) {
    if (const auto* args = std::get_if<const RouteArgs*>(&call)) swap_rows_of_an_expert(**args);
  }
  if (fault_ == Fault::kCombineReadsDropped) {
    if (const auto* args = std::get_if<const CombineArgs*>(&call)) {
      add_first_row_for_dropped(**args);
    }
  }
  if (fault_ == Fault::kRoutePadsSource) {
    if (const auto* args = std::get_if<const RouteArgs*>(&call)) {
      const TensorView& source = (*args)->source_row;
      for (int64_t row = 0; row < source.shape[0]; ++row) {
        if (index_at(source, row) < 0) cpu::set_index(source, row * source.strides[0], 0);
      }
    }
  }
  if (fault_ == Fault::kRowDotOfScaled) {
    const TensorView& scale = activate_grad.row_scale;
    for (int64_t row = 0; scale.given() && row < scale.shape[0]; ++row) {
      cpu::set_number(activate_grad.row_dot, row,
                      cpu::number_at(activate_grad.row_dot, row) * cpu::number_at(scale, row));
    }
  }
  return status;
}

}  // namespace cadre::contract
