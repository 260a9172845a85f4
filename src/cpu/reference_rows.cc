// The row ops, each written as its definition.
#include "cpu/reference_rows.h"

#include "core/activation_math.h"
#include "cpu/expert_choice.h"
#include "cpu/row_indices.h"

namespace cadre::cpu {
namespace {

void route(const RouteArgs& args) {
  const int64_t tokens = args.expert_ids.shape[0];
  const int64_t top_k = args.expert_ids.shape[1];
  const int64_t num_experts = args.group_sizes.shape[0];
  for (int64_t row = 0; row < tokens * top_k; ++row) {
    set_index(args.source_row, row * args.source_row.strides[0], -1);
    set_index(args.slot_row,
              row / top_k * args.slot_row.strides[0] + row % top_k * args.slot_row.strides[1], -1);
  }
  int64_t row = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t first = row;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t j = 0; j < top_k; ++j) {
        if (index_at(args.expert_ids, t, j) != expert) continue;
        set_index(args.source_row, row * args.source_row.strides[0], t);
        set_index(args.slot_row, t * args.slot_row.strides[0] + j * args.slot_row.strides[1], row);
        ++row;
      }
    }
    set_index(args.group_sizes, expert * args.group_sizes.strides[0], row - first);
  }
}

void permute(const PermuteArgs& args) {
  const auto size = size_of(args.x.dtype);
  for (int64_t row = 0; row < args.out.shape[0]; ++row) {
    const int64_t from = index_at(args.source_row, row);
    for (int64_t col = 0; col < args.out.shape[1]; ++col) {
      char* to = address_at(args.out, row, col);
      if (from < 0) {
        std::memset(to, 0, size);
      } else {
        std::memcpy(to, address_at(args.x, from, col), size);
      }
    }
  }
}

void combine(const CombineArgs& args) {
  for (int64_t t = 0; t < args.out.shape[0]; ++t) {
    for (int64_t col = 0; col < args.out.shape[1]; ++col) {
      double sum = 0;
      for (int64_t j = 0; j < args.slot_row.shape[1]; ++j) {
        const int64_t row = index_at(args.slot_row, t, j);
        if (row < 0) continue;
        const double weight = args.weights.given() ? value_at(args.weights, t, j) : 1.0;
        sum += weight * value_at(args.y, row, col);
      }
      if (args.shared.given()) sum += value_at(args.shared, t, col);
      if (args.residual.given()) sum += value_at(args.residual, t, col);
      set_value(args.out, t, col, sum);
    }
  }
}

void combine_grad(const CombineGradArgs& args) {
  const TensorView dout = dout_or_ones(args);
  const int64_t width = dout.shape[1];
  for (int64_t row = 0; args.dy.given() && row < args.dy.shape[0]; ++row) {
    const int64_t token = index_at(args.source_row, row);
    const int64_t slot = token < 0 ? -1 : slot_of_row(args.slot_row, token, row);
    const bool weighed = slot >= 0 && args.weights.given();
    for (int64_t col = 0; col < width; ++col) {
      const double weight = weighed ? value_at(args.weights, token, slot) : 1.0;
      set_value(args.dy, row, col, slot < 0 ? 0.0 : weight * value_at(dout, token, col));
    }
  }
  for (int64_t t = 0; args.dweights.given() && t < args.dweights.shape[0]; ++t) {
    for (int64_t j = 0; j < args.dweights.shape[1]; ++j) {
      const int64_t row = index_at(args.slot_row, t, j);
      double sum = 0;
      for (int64_t col = 0; row >= 0 && col < width; ++col) {
        sum += value_at(dout, t, col) * value_at(args.y, row, col);
      }
      set_value(args.dweights, t, j, sum);
    }
  }
}

Activated<double> activated_at(const TensorView& preact, const Activation& activation, int64_t row,
                               const GateColumns& columns) {
  return with_activation_kind(activation.kind, [&](auto kind) {
    return activate_with<decltype(kind)::value>(value_at(preact, row, columns.gate),
                                                value_at(preact, row, columns.up),
                                                ClampParameters<double>(activation));
  });
}

void activate(const ActivateArgs& args) {
  const int64_t width = args.out.shape[1];
  for (int64_t row = 0; row < args.out.shape[0]; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const GateColumns columns = gate_columns(args.activation, i, width);
      set_value(args.out, row, i, activated_at(args.preact, args.activation, row, columns).value);
    }
  }
}

void activate_grad(const ActivateGradArgs& args) {
  const int64_t width = args.grad.shape[1];
  for (int64_t row = 0; row < args.grad.shape[0]; ++row) {
    const double scale = args.row_scale.given() ? number_at(args.row_scale, row) : 1.0;
    double dot = 0;
    for (int64_t i = 0; i < width; ++i) {
      const GateColumns columns = gate_columns(args.activation, i, width);
      const Activated<double> a = activated_at(args.preact, args.activation, row, columns);
      const double grad = value_at(args.grad, row, i);
      dot += a.value * grad;
      if (args.d_preact.given()) {
        set_value(args.d_preact, row, columns.gate, scale * grad * a.d_gate);
        if (args.activation.gated()) {
          set_value(args.d_preact, row, columns.up, scale * grad * a.d_up);
        }
      }
      if (args.activated.given()) set_value(args.activated, row, i, scale * a.value);
    }
    if (args.row_dot.given()) set_number(args.row_dot, row, dot);
  }
}

}  // namespace

void reference_rows(const plan::Problem& problem, const plan::RowCall& call) {
  std::visit(plan::EachOf{[](const RouteArgs* args) { route(*args); },
                          [](const PermuteArgs* args) { permute(*args); },
                          [](const CombineArgs* args) { combine(*args); },
                          [](const CombineGradArgs* args) { combine_grad(*args); },
                          [](const SelectExpertsArgs* args) {
                            for (int64_t t = 0; t < args->logits.shape[0]; ++t) {
                              select_experts_of<double>(*args, t);
                            }
                          },
                          [](const SelectExpertsGradArgs* args) {
                            for (int64_t t = 0; t < args->logits.shape[0]; ++t) {
                              select_experts_grad_of<double>(*args, t);
                            }
                          },
                          [](const ActivateArgs* args) { activate(*args); },
                          [](const ActivateGradArgs* args) { activate_grad(*args); },
                          [&](const QuantizeArgs* args) { reference_quantize(problem, *args); },
                          [&](const DequantizeArgs* args) { reference_dequantize(problem, *args); },
                          [&](const AmaxArgs* args) { reference_amax(problem, *args); }},
             call);
}

}  // namespace cadre::cpu
