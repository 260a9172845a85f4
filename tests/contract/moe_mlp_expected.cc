// What a layer must give: one slot after the other in double, with the bound of what rounding can
// do.
#include <cmath>

#include "core/activation_math.h"
#include "tests/contract/moe_mlp_case.h"

namespace cadre::contract {
namespace {

using verify::PlacedTensor;

Activated<double> activated_of(const Activation& activation, double gate, double up) {
  return with_activation_kind(activation.kind, [&](auto kind) {
    return activate_with<decltype(kind)::value>(gate, up, ClampParameters<double>(activation));
  });
}

/// A number and what it may be off by.
struct Term {
  double value = 0;
  double bound = 0;
};

}  // namespace

/// Adds what one slot contributes to every result.
void MoeData::expect_slot(int64_t slot) {
  const int64_t e = expert_of(slot);
  if (e < 0) return;
  const Activation& activation = c_.options.activation;
  const int64_t t = slot / routing_.top_k;
  const int64_t j = slot % routing_.top_k;
  const int64_t row = routing_.slot_row[static_cast<size_t>(slot)];
  const double weight = c_.weighted ? router_->before(0, t, j) : 1.0;
  const double in = c_.options.weights_on_input ? weight : 1.0;
  const double on_out = c_.options.weights_on_input ? 1.0 : weight;
  const auto terms = [&](int64_t count) { return sum_unit_ * static_cast<double>(count + 8); };
  const auto stored = [&](double value) { return unit_ * std::fabs(value) + tiny_; };
  const auto vector = [](int64_t size) { return std::vector<Term>(static_cast<size_t>(size)); };
  const auto at = [](auto& list, int64_t i) -> auto& { return list[static_cast<size_t>(i)]; };

  std::vector<Term> x = vector(c_.h), pre = vector(full_), a = vector(c_.i), slopes = vector(full_);
  for (int64_t k = 0; k < c_.h; ++k) {
    const double value = in * x_->before(0, t, k);
    at(x, k) = {value, c_.options.weights_on_input && c_.weighted ? stored(value) : 0};
  }
  for (int64_t n = 0; n < full_; ++n) {
    double magnitude = c_.biases ? std::fabs(bias13_->before(e, 0, n)) : 0;
    Term sum{c_.biases ? bias13_->before(e, 0, n) : 0};
    for (int64_t k = 0; k < c_.h; ++k) {
      const double weight_of = w13(e, n, k);
      sum.value += weight_of * at(x, k).value;
      sum.bound += std::fabs(weight_of) * at(x, k).bound;
      magnitude += std::fabs(weight_of * at(x, k).value);
    }
    sum.bound += terms(c_.h) * magnitude;
    pre_.add(row, n, sum.value, sum.bound);
    sum.bound += stored(sum.value);
    at(pre, n) = sum;
  }
  const bool in_turn = activation.layout == GateLayout::kInterleaved;
  for (int64_t i = 0; i < c_.i; ++i) {
    const int64_t g = activation.gated() && in_turn ? 2 * i : i;
    const int64_t u = !activation.gated() ? i : in_turn ? 2 * i + 1 : c_.i + i;
    const Term gate = at(pre, g), up = activation.gated() ? at(pre, u) : Term{1, 0};
    const Activated<double> f = activated_of(activation, gate.value, up.value);
    // How fast the functions and their slopes change, generously.
    const double size = (1 + std::fabs(gate.value)) * (2 + std::fabs(up.value));
    const double off = 4 * size * (gate.bound + up.bound) + 64 * sum_unit_ * size * size;
    at(a, i) = {f.value, off + stored(f.value)};
    at(slopes, g) = {f.d_gate, off};
    if (activation.gated()) at(slopes, u) = {f.d_up, off};
  }
  for (int64_t k = 0; k < c_.h; ++k) {
    const double bias = c_.biases ? bias2_->before(e, 0, k) : 0;
    Term y{bias, std::fabs(bias) * terms(c_.i)};
    for (int64_t n = 0; n < c_.i; ++n) {
      const double product = w2(e, k, n) * at(a, n).value;
      y.value += product;
      y.bound += std::fabs(w2(e, k, n)) * at(a, n).bound + terms(c_.i) * std::fabs(product);
    }
    y.bound += stored(y.value);
    sum_.add(t, k, on_out * y.value,
             std::fabs(on_out) * y.bound + terms(routing_.top_k) * std::fabs(on_out * y.value));
  }
  if (!c_.saves) return;

  // Backward. `d` is the gradient of this slot's activation before its weight.
  std::vector<Term> d = vector(c_.i), d_pre = vector(full_);
  Term dot;
  for (int64_t k = 0; k < c_.h; ++k) {
    const double dy = dout_->before(0, t, k);
    for (int64_t n = 0; n < c_.i; ++n) {
      at(d, n).value += w2(e, k, n) * dy;
      at(d, n).bound += terms(c_.h) * std::fabs(w2(e, k, n) * dy);
    }
    const double bias = c_.biases ? bias2_->before(e, 0, k) * dy : 0;
    dot.value += bias;
    dot.bound += terms(c_.h + c_.i) * std::fabs(bias);
  }
  for (int64_t n = 0; n < c_.i; ++n) {
    Term& grad = at(d, n);
    grad.bound += stored(grad.value);
    const Term& value = at(a, n);
    dot.value += value.value * grad.value;
    dot.bound += std::fabs(value.value) * grad.bound +
                 value.bound * (std::fabs(grad.value) + grad.bound) +
                 terms(c_.i) * std::fabs(value.value * grad.value);
  }
  for (int64_t i = 0; i < full_; ++i) {
    const Term& grad = at(d, !activation.gated() ? i : in_turn ? i / 2 : i % c_.i);
    const Term& slope = at(slopes, i);
    Term& result = at(d_pre, i);
    result.value = on_out * grad.value * slope.value;
    result.bound = std::fabs(on_out) * (std::fabs(grad.value) * slope.bound +
                                        grad.bound * (std::fabs(slope.value) + slope.bound)) +
                   terms(4) * std::fabs(result.value) + stored(result.value);
    if (c_.biases) {
      dbias13_sum_[static_cast<size_t>(e)].add(
          0, i, result.value, result.bound + terms(routing_.slots()) * std::fabs(result.value));
    }
  }
  const double sum_error = terms(routing_.slots());
  for (int64_t k = 0; k < c_.h; ++k) {
    const double dy = dout_->before(0, t, k);
    for (int64_t n = 0; n < c_.i; ++n) {
      const double weighed = on_out * at(a, n).value;
      const double bound = std::fabs(on_out) * at(a, n).bound + stored(weighed);
      at(dw2_sum_, e)
          .add(k, n, dy * weighed, std::fabs(dy) * bound + sum_error * std::fabs(dy * weighed));
    }
    Term dx_row;
    for (int64_t n = 0; n < full_; ++n) {
      const Term& grad = at(d_pre, n);
      const Term& value = at(x, k);
      at(dw13_sum_, e)
          .add(n, k, grad.value * value.value,
               std::fabs(grad.value) * value.bound +
                   grad.bound * (std::fabs(value.value) + value.bound) +
                   sum_error * std::fabs(grad.value * value.value));
      dx_row.value += w13(e, n, k) * grad.value;
      dx_row.bound += std::fabs(w13(e, n, k)) * grad.bound +
                      terms(full_) * std::fabs(w13(e, n, k) * grad.value);
    }
    dx_row.bound += stored(dx_row.value);
    dx_sum_.add(
        t, k, in * dx_row.value,
        std::fabs(in) * dx_row.bound + terms(routing_.top_k) * std::fabs(in * dx_row.value));
    if (c_.biases) at(dbias2_sum_, e).add(0, k, on_out * dy, sum_error * std::fabs(on_out * dy));
    if (!c_.options.weights_on_input) continue;
    const double token = x_->before(0, t, k);
    drouter_sum_.add(
        t, j, token * dx_row.value,
        std::fabs(token) * dx_row.bound + terms(c_.h) * std::fabs(token * dx_row.value));
  }
  if (!c_.options.weights_on_input) drouter_sum_.add(t, j, dot.value, dot.bound);
}

void MoeData::expect_everything() {
  const int64_t t = routing_.tokens;
  sum_ = Bounded(t, c_.h);
  pre_ = Bounded(routing_.slots(), full_);
  dx_sum_ = Bounded(t, c_.h);
  drouter_sum_ = Bounded(t, routing_.top_k);
  const auto experts = static_cast<size_t>(local_);
  dw13_sum_.assign(experts, Bounded(full_, c_.h));
  dw2_sum_.assign(experts, Bounded(c_.h, c_.i));
  dbias13_sum_.assign(experts, Bounded(1, full_));
  dbias2_sum_.assign(experts, Bounded(1, c_.h));
  for (int64_t slot = 0; slot < routing_.slots(); ++slot) expect_slot(slot);
  for (int64_t row = 0; row < t; ++row) {
    for (int64_t col = 0; col < c_.h; ++col) {
      double added = c_.shared ? shared_->before(0, row, col) : 0;
      added += c_.residual ? residual_->before(0, row, col) : 0;
      sum_.add(row, col, added, 4 * sum_unit_ * (std::fabs(added) + 2));
    }
  }
  if (!c_.accumulates) return;
  const auto add_before = [&](std::vector<Bounded>& sums, const PlacedTensor& tensor, bool turned) {
    for (int64_t e = 0; e < local_; ++e) {
      const verify::MatrixShape shape = tensor.shapes()[static_cast<size_t>(e)];
      for (int64_t r = 0; r < shape.rows; ++r) {
        for (int64_t col = 0; col < shape.cols; ++col) {
          const double value = tensor.before(e, r, col);
          sums[static_cast<size_t>(e)].add(turned ? col : r, turned ? r : col, value,
                                           8 * sum_unit_ * std::fabs(value));
        }
      }
    }
  };
  add_before(dw13_sum_, *dw13_, c_.transposed);
  add_before(dw2_sum_, *dw2_, c_.transposed);
  add_before(dbias13_sum_, *dbias13_, false);
  add_before(dbias2_sum_, *dbias2_, false);
}

}  // namespace cadre::contract
