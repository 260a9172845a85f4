// The layer's tensors, its calls, and samples of each tensor that they write.
#include "expert_layer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "cadre/route.h"
#include "core/text.h"
#include "machine.h"
#include "verify/tolerance.h"

namespace cadre::cli {
namespace {

constexpr ActivationKind kKind = ActivationKind::kSwiglu;
constexpr int64_t kTokenSamples = 4, kColumnSamples = 6;
/// Roundings of a function of one element (exp, reciprocal and the products around them).
constexpr int64_t kFunctionSteps = 16;

double sigmoid(double value) { return 1.0 / (1.0 + std::exp(-value)); }
double silu(double value) { return value * sigmoid(value); }

/// A sum of products with the sum of their absolute values.
struct Sum {
  double value = 0, magnitude = 0;
  void add(double term) {
    value += term;
    magnitude += std::fabs(term);
  }
};

/// Up to `count` of [0, size), the first and the last among them.
std::vector<int64_t> spread(int64_t size, int64_t count) {
  std::vector<int64_t> indices;
  const int64_t used = std::min(size, count);
  for (int64_t i = 0; i < used; ++i) {
    indices.push_back(used == 1 ? 0 : i * (size - 1) / (used - 1));
  }
  return indices;
}

}  // namespace

Status ExpertLayer::make(const shapes::LayerShape& shape, DType dtype, Device device, bool trains,
                         Pages pages, void* stream) {
  shape_ = shape;
  dtype_ = dtype;
  sum_ = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  device_ = device;
  stream_ = stream;
  trains_ = trains;
  const int64_t t = shape.tokens, k = shape.top_k, h = shape.hidden, i = shape.intermediate;
  const int64_t g = shape.experts, m = shape.rows();
  struct Wanted {
    OwnedTensor* tensor;
    DType dtype;
    std::vector<int64_t> dims;
    bool kept;
  };
  const Wanted wanted[] = {
      {&x_, dtype, {t, h}, true},           {&ids_, DType::kI32, {t, k}, true},
      {&weights_, sum_, {t, k}, true},      {&w13_, dtype, {g, 2 * i, h}, true},
      {&w2_, dtype, {g, h, i}, true},       {&sizes_, DType::kI32, {g}, true},
      {&source_, DType::kI32, {m}, true},   {&slots_, DType::kI32, {t, k}, true},
      {&out_, dtype, {t, h}, true},         {&preact_, dtype, {m, 2 * i}, true},
      {&dout_, dtype, {t, h}, trains},      {&dx_, dtype, {t, h}, trains},
      {&dweights_, sum_, {t, k}, trains},   {&dw13_, dtype, {g, 2 * i, h}, trains},
      {&dw2_, dtype, {g, h, i}, trains},    {&d_preact_, dtype, {m, 2 * i}, trains},
      {&activated_, dtype, {m, i}, trains},
  };
  for (const Wanted& one : wanted) {
    if (!one.kept) continue;
    const auto& d = one.dims;
    Status status = d.size() == 1 ? one.tensor->make(one.dtype, {d[0]}, device, pages)
                    : d.size() == 2
                        ? one.tensor->make(one.dtype, {d[0], d[1]}, device, pages)
                        : one.tensor->make(one.dtype, {d[0], d[1], d[2]}, device, pages);
    if (!status.ok()) return status;
  }
  // Weights of variance 1 / fan-in keep activations of order one.
  const auto weight_scale = [](int64_t fan_in) {
    return std::sqrt(3.0 / static_cast<double>(fan_in));
  };
  x_.fill_random(1, std::sqrt(3.0));
  w13_.fill_random(2, weight_scale(h));
  w2_.fill_random(3, weight_scale(i));
  weights_.fill_random(4, 1.0);
  if (trains) dout_.fill_random(5, 1.0);
  std::mt19937_64 random(6);
  std::vector<int64_t> experts(static_cast<size_t>(g));
  std::iota(experts.begin(), experts.end(), 0);
  for (int64_t token = 0; token < t; ++token) {
    for (int64_t slot = 0; slot < k; ++slot) {
      const auto first = static_cast<size_t>(slot);
      std::swap(experts[first], experts[first + random() % (experts.size() - first)]);
      ids_.set(token * k + slot, static_cast<double>(experts[first]));
    }
  }
  for (OwnedTensor* tensor : {&x_, &w13_, &w2_, &weights_, &ids_, &dout_}) {
    if (tensor->size() == 0) continue;
    if (Status status = tensor->upload(); !status.ok()) return status;
  }
  return wait();
}

Status ExpertLayer::wait() const {
  return device_.kind == DeviceKind::kCuda ? cuda_synchronize() : Status{};
}

MoeMlpRouting ExpertLayer::routing() const {
  const TensorView sizes = sizes_.view(Side::kDevice);
  return {.group_sizes = {sizes.data, sizes.dtype, sizes.shape[0], sizes.device},
          .source_row = source_.view(Side::kDevice),
          .slot_row = slots_.view(Side::kDevice),
          .weights = weights_.view(Side::kDevice)};
}

MoeMlpForwardArgs ExpertLayer::forward_args(bool keeps) const {
  MoeMlpForwardArgs args{
      .x = x_.view(Side::kDevice), .routing = routing(), .out = out_.view(Side::kDevice)};
  if (keeps) args.preact = preact_.view(Side::kDevice);
  return args;
}

MoeMlpBackwardArgs ExpertLayer::backward_args() const {
  MoeMlpBackwardArgs args{.dout = dout_.view(Side::kDevice),
                          .dx = dx_.view(Side::kDevice),
                          .dweights = dweights_.view(Side::kDevice),
                          .dw13 = dw13_.view(Side::kDevice),
                          .dw2 = dw2_.view(Side::kDevice),
                          .d_preact = d_preact_.view(Side::kDevice),
                          .activated = activated_.view(Side::kDevice)};
  return args;
}

MoeMlp ExpertLayer::layer() const {
  return MoeMlp({.w13 = w13_.view(Side::kDevice), .w2 = w2_.view(Side::kDevice)},
                {.activation = {.kind = kKind}});
}

CallOptions ExpertLayer::options() const {
  return {.stream = stream_,
          .workspace = workspace_.view(Side::kDevice).data,
          .workspace_size_bytes = static_cast<size_t>(workspace_.size())};
}

Status ExpertLayer::prepare(Context& context) {
  size_t forward_bytes = 0, backward_bytes = 0;
  // On a CPU the sizes are looked at.
  if (Status status = route_tokens(context); !status.ok()) return status;
  Status status = layer().forward_workspace_size(context, forward_args(true), &forward_bytes);
  if (status.ok() && trains_) {
    const MoeMlpSaved saved{x_.view(Side::kDevice), preact_.view(Side::kDevice), routing()};
    status = layer().backward_workspace_size(context, saved, backward_args(), &backward_bytes);
  }
  if (!status.ok()) return status;
  const auto bytes = static_cast<int64_t>(std::max({forward_bytes, backward_bytes, size_t{1}}));
  return workspace_.make(DType::kI8, {bytes}, device_);
}

Status ExpertLayer::route_tokens(Context& context) {
  RouteArgs args{.expert_ids = ids_.view(Side::kDevice),
                 .group_sizes = sizes_.view(Side::kDevice),
                 .source_row = source_.view(Side::kDevice),
                 .slot_row = slots_.view(Side::kDevice)};
  args.options.stream = stream_;
  return route(context, args);
}

Status ExpertLayer::pass(Context& context, bool keeps, MoeMlpSaved* saved) {
  MoeMlpForwardArgs args = forward_args(keeps);
  args.options = options();
  return layer().forward(context, args, saved);
}

Status ExpertLayer::forward(Context& context) {
  Status status = route_tokens(context);
  return status.ok() ? pass(context, false) : status;
}

Status ExpertLayer::step(Context& context) {
  MoeMlpSaved saved;
  Status status = route_tokens(context);
  if (status.ok()) status = pass(context, true, &saved);
  if (!status.ok()) return status;
  MoeMlpBackwardArgs args = backward_args();
  args.options = options();
  return layer().backward(context, saved, args);
}

std::vector<ExpertLayer::Row> ExpertLayer::rows_of_token(int64_t token) const {
  std::vector<Row> rows;
  for (int64_t slot = 0; slot < shape_.top_k; ++slot) {
    const int64_t at = token * shape_.top_k + slot;
    rows.push_back(
        {static_cast<int64_t>(slots_.get(at)), token, slot, static_cast<int64_t>(ids_.get(at))});
  }
  return rows;
}

std::vector<ExpertLayer::Row> ExpertLayer::rows_of_expert(int64_t expert) const {
  std::vector<Row> rows;
  for (int64_t token = 0; token < shape_.tokens; ++token) {
    for (const Row& row : rows_of_token(token)) {
      if (row.expert == expert) rows.push_back(row);
    }
  }
  return rows;
}

/// What w2 gets for a pre-activation as it was written, before it is rounded.
double ExpertLayer::activated(int64_t row, int64_t col) const {
  const int64_t i = shape_.intermediate;
  return silu(preact_.get(row * 2 * i + col)) * preact_.get(row * 2 * i + i + col);
}

/// The relative error of a number that is stored between two ops, rounded to nearest.
double ExpertLayer::unit() const {
  switch (dtype_) {
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF16:
      return 0x1p-11;
    default:
      return verify::unit_of(sum_) / 2;
  }
}

/// The pre-activation of a token's rows, and the token's result from these.
void ExpertLayer::check_forward(CheckResult* result) const {
  const int64_t h = shape_.hidden, i = shape_.intermediate;
  const double function = verify::rounding_bound(sum_, kFunctionSteps, 1.0);
  // f16: what is below its normal numbers is off by as much as the smallest of them.
  const double tiny = dtype_ == DType::kF16 ? 0x1p-25 : 0;
  for (const int64_t token : spread(shape_.tokens, kTokenSamples)) {
    const std::vector<Row> rows = rows_of_token(token);
    for (const Row& row : rows) {
      for (const int64_t col : spread(2 * i, kColumnSamples)) {
        Sum sum;
        for (int64_t j = 0; j < h; ++j) {
          sum.add(x_.get(token * h + j) * w13_.get((row.expert * 2 * i + col) * h + j));
        }
        note(result, preact_.get(row.row * 2 * i + col),
             {sum.value, verify::rounding_bound(sum_, h + 8, sum.magnitude)}, dtype_,
             text("preact[", row.row, ", ", col, "]"));
      }
    }
    for (const int64_t col : spread(h, kColumnSamples)) {
      Sum out;
      double bound = 0;
      for (const Row& row : rows) {
        Sum y;
        double off = 0;
        for (int64_t j = 0; j < i; ++j) {
          const double weight = w2_.get((row.expert * h + col) * i + j);
          const double term = activated(row.row, j) * weight;
          y.add(term);
          off += std::fabs(term) * (unit() + function) + std::fabs(weight) * tiny;
        }
        off += verify::rounding_bound(sum_, i + 8, y.magnitude + off);
        off += unit() * (std::fabs(y.value) + off) + tiny;
        const double share = weights_.get(token * shape_.top_k + row.slot);
        out.add(share * y.value);
        bound += std::fabs(share) * off;
      }
      bound += verify::rounding_bound(sum_, shape_.top_k + 8, out.magnitude + bound);
      note(result, out_.get(token * h + col), {out.value, bound}, dtype_,
           text("out[", token, ", ", col, "]"));
    }
  }
}

/// One element of what activate_grad writes: the weighed activation, and both gradients.
void ExpertLayer::check_inner(const Row& at, int64_t col, CheckResult* result) const {
  const int64_t h = shape_.hidden, i = shape_.intermediate;
  const double share = weights_.get(at.token * shape_.top_k + at.slot);
  const double function = verify::rounding_bound(sum_, kFunctionSteps, 1.0);
  const double tiny = dtype_ == DType::kF16 ? 0x1p-25 : 0;
  const double kept = share * activated(at.row, col);
  note(result, activated_.get(at.row * i + col), {kept, function * std::fabs(kept)}, dtype_,
       text("activated[", at.row, ", ", col, "]"));
  Sum sum;
  for (int64_t j = 0; j < h; ++j) {
    sum.add(dout_.get(at.token * h + j) * w2_.get((at.expert * h + j) * i + col));
  }
  const double off =
      verify::rounding_bound(sum_, h + 8, sum.magnitude) + unit() * std::fabs(sum.value) + tiny;
  const double gate = preact_.get(at.row * 2 * i + col);
  const double up = preact_.get(at.row * 2 * i + i + col);
  const double s = sigmoid(gate);
  const double slope = s * (1 + gate * (1 - s)) * up;
  // The terms of the slope may cancel, their errors don't.
  const double slope_off = function * s * (1 + std::fabs(gate) * (1 - s)) * std::fabs(up);
  const struct {
    int64_t column;
    double factor, off;
  } gradients[] = {{col, slope, slope_off},
                   {i + col, silu(gate), function * std::fabs(silu(gate))}};
  for (const auto& gradient : gradients) {
    const double value = share * sum.value * gradient.factor;
    const double bound = std::fabs(share) * (off * (std::fabs(gradient.factor) + gradient.off) +
                                             std::fabs(sum.value) * gradient.off) +
                         function * std::fabs(value);
    note(result, d_preact_.get(at.row * 2 * i + gradient.column), {value, bound}, dtype_,
         text("d_preact[", at.row, ", ", gradient.column, "]"));
  }
}

void ExpertLayer::check_dx(int64_t token, int64_t col, CheckResult* result) const {
  const int64_t h = shape_.hidden, i = shape_.intermediate;
  const double tiny = dtype_ == DType::kF16 ? 0x1p-25 : 0;
  Sum dx;
  double bound = 0;
  for (const Row& row : rows_of_token(token)) {
    Sum sum;
    for (int64_t j = 0; j < 2 * i; ++j) {
      sum.add(d_preact_.get(row.row * 2 * i + j) * w13_.get((row.expert * 2 * i + j) * h + col));
    }
    dx.add(sum.value);
    bound += verify::rounding_bound(sum_, 2 * i + 8, sum.magnitude) +
             unit() * std::fabs(sum.value) + tiny;
  }
  bound += verify::rounding_bound(sum_, shape_.top_k + 8, dx.magnitude + bound);
  note(result, dx_.get(token * h + col), {dx.value, bound}, dtype_,
       text("dx[", token, ", ", col, "]"));
}

void ExpertLayer::check_weight_gradients(int64_t expert, CheckResult* result) const {
  const int64_t h = shape_.hidden, i = shape_.intermediate;
  const std::vector<Row> rows = rows_of_expert(expert);
  const auto terms = static_cast<int64_t>(rows.size()) + 8;
  for (const int64_t col : spread(h, kColumnSamples)) {
    for (const int64_t inner : spread(i, kColumnSamples)) {
      Sum dw13, dw2;
      for (const Row& row : rows) {
        dw13.add(d_preact_.get(row.row * 2 * i + inner) * x_.get(row.token * h + col));
        dw2.add(dout_.get(row.token * h + col) * activated_.get(row.row * i + inner));
      }
      note(result, dw13_.get((expert * 2 * i + inner) * h + col),
           {dw13.value, verify::rounding_bound(sum_, terms, dw13.magnitude)}, dtype_,
           text("dw13[", expert, ", ", inner, ", ", col, "]"));
      note(result, dw2_.get((expert * h + col) * i + inner),
           {dw2.value, verify::rounding_bound(sum_, terms, dw2.magnitude)}, dtype_,
           text("dw2[", expert, ", ", col, ", ", inner, "]"));
    }
  }
}

/// The gradient of the weight of a token's first slot.
void ExpertLayer::check_dweights(int64_t token, CheckResult* result) const {
  const int64_t h = shape_.hidden, i = shape_.intermediate;
  const Row row = rows_of_token(token).front();
  const double function = verify::rounding_bound(sum_, kFunctionSteps, 1.0);
  const double tiny = dtype_ == DType::kF16 ? 0x1p-25 : 0;
  std::vector<Sum> inner(static_cast<size_t>(i));
  for (int64_t j = 0; j < h; ++j) {
    for (int64_t col = 0; col < i; ++col) {
      inner[static_cast<size_t>(col)].add(dout_.get(token * h + j) *
                                          w2_.get((row.expert * h + j) * i + col));
    }
  }
  Sum dot;
  double bound = 0;
  for (int64_t col = 0; col < i; ++col) {
    const Sum& sum = inner[static_cast<size_t>(col)];
    const double value = activated(row.row, col);
    dot.add(sum.value * value);
    bound += std::fabs(value) * (verify::rounding_bound(sum_, h + 8, sum.magnitude) +
                                 (unit() + function) * std::fabs(sum.value) + tiny);
  }
  bound += verify::rounding_bound(sum_, i + 8, dot.magnitude + bound);
  note(result, dweights_.get(token * shape_.top_k), {dot.value, bound}, sum_,
       text("dweights[", token, ", 0]"));
}

Status ExpertLayer::check(Context& context, CheckResult* result) {
  std::vector<OwnedTensor*> written = {&sizes_, &source_, &slots_, &out_, &preact_};
  if (trains_) {
    written.insert(written.end(), {&dx_, &dweights_, &dw13_, &dw2_, &d_preact_, &activated_});
  }
  for (OwnedTensor* tensor : written) {
    tensor->fill_nan();
    if (Status status = tensor->upload(); !status.ok()) return status;
  }
  Status status = wait();
  if (status.ok()) status = trains_ ? step(context) : route_tokens(context);
  if (status.ok() && !trains_) {
    // Inference keeps no pre-activation: the same pass with it gives what `out` is checked from.
    status = pass(context, true);
    if (status.ok()) status = wait();
    out_.fill_nan();
    if (status.ok()) status = out_.upload();
    if (status.ok()) status = wait();
    if (status.ok()) status = forward(context);
  }
  if (status.ok()) status = wait();
  for (OwnedTensor* tensor : written) {
    if (status.ok()) status = tensor->download();
  }
  if (!status.ok()) return status;
  check_forward(result);
  if (!trains_) return {};
  for (const int64_t token : spread(shape_.tokens, kTokenSamples)) {
    for (const Row& row : rows_of_token(token)) {
      for (const int64_t col : spread(shape_.intermediate, kColumnSamples)) {
        check_inner(row, col, result);
      }
    }
    for (const int64_t col : spread(shape_.hidden, kColumnSamples)) check_dx(token, col, result);
  }
  check_dweights(shape_.tokens / 2, result);
  for (const int64_t expert : spread(shape_.experts, kTokenSamples)) {
    check_weight_gradients(expert, result);
  }
  return {};
}

}  // namespace cadre::cli
