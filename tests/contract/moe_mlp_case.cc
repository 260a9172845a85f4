// Data of a layer, the calls, the comparison. What to expect: moe_mlp_expected.cc.
#include "tests/contract/moe_mlp_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/text.h"

namespace cadre::contract {
namespace {

using verify::PlacedTensor;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double unit_of_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kBF16:
      return 0x1p-8;
    default:
      return 0x1p-11;
  }
}

}  // namespace

MoeData::MoeData(const Subject& subject, const DTypes& types, const Routing& routing,
                 const MoeCase& c)
    : subject_(subject),
      types_(types),
      routing_(routing),
      c_(c),
      random_(c.seed),
      full_(c.i * c.options.activation.columns()),
      local_(c.count < 0 ? routing.num_experts : c.count),
      unit_(unit_of_type(types.lhs)),
      sum_unit_(types.lhs == DType::kF64 ? 0x1p-53 : 0x1p-24),
      tiny_(types.lhs == DType::kF16 ? 0x1p-24 : 0) {
  const int64_t t = routing.tokens;
  const int64_t m = routing.slots();
  const DType router = types.lhs == DType::kF64 ? DType::kF64 : DType::kF32;
  const DType gradient = c.gradient == DType::kInvalid ? types.rhs : c.gradient;
  const auto wide = [&](DType dtype) {
    return c.transposed ? matrices(dtype, c.h, full_) : matrices(dtype, full_, c.h);
  };
  const auto narrow = [&](DType dtype) {
    return c.transposed ? matrices(dtype, c.i, c.h) : matrices(dtype, c.h, c.i);
  };
  w13_ = wide(types.rhs);
  w2_ = narrow(types.rhs);
  bias13_ = matrices(types.rhs, 1, full_);
  bias2_ = matrices(types.rhs, 1, c.h);
  dw13_ = wide(gradient);
  dw2_ = narrow(gradient);
  dbias13_ = matrices(types.rhs, 1, full_);
  dbias2_ = matrices(types.rhs, 1, c.h);
  x_ = matrix(types.lhs, t, c.h);
  dout_ = matrix(types.lhs, t, c.h);
  shared_ = matrix(types.lhs, t, c.h);
  residual_ = matrix(types.out, t, c.h);
  router_ = matrix(router, t, routing.top_k);
  out_ = matrix(types.out, t, c.h);
  dx_ = matrix(types.out, t, c.h);
  drouter_ = matrix(router, t, routing.top_k);
  preact_ = matrix(types.lhs, m, full_);
  d_preact_ = matrix(types.lhs, m, full_);
  activated_ = matrix(types.lhs, m, c.i);
  // Parameters first, so that layers of one seed and other tokens share them.
  random_ = verify::Random(c.seed);
  for (PlacedTensor* tensor : inputs()) fill(*tensor, tensor == w13_.get() ? 0.7 : 1);
  const std::vector<Gradient> made = gradients();
  for (PlacedTensor* tensor : results()) {
    const auto found = std::find_if(made.begin(), made.end(),
                                    [&](const Gradient& g) { return g.tensor == tensor; });
    if (found == made.end() || found->asked) allow(*tensor);
  }
  if (c.accumulates || c.adds_to_zeros) {
    for (PlacedTensor* tensor : {dw13_.get(), dw2_.get(), dbias13_.get(), dbias2_.get()}) {
      fill(*tensor, c.accumulates ? 1 : 0);
    }
  }
  slot_ = std::make_unique<verify::IndexMatrix>(subject.memory, c.index, t, routing.top_k);
  source_ = std::make_unique<verify::IndexMatrix>(subject.memory, c.index, m, 1);
  for (int64_t slot = 0; slot < m; ++slot) {
    slot_->set(slot / routing.top_k, slot % routing.top_k,
               routing.slot_row[static_cast<size_t>(slot)]);
    source_->set(slot, 0, routing.source_row[static_cast<size_t>(slot)]);
  }
  verify::Memory& memory_of_sizes = c.host_sizes ? verify::host_memory() : subject.memory;
  sizes_ = std::make_unique<verify::IndexArray>(memory_of_sizes, routing.sizes, DType::kI32);
  if (c.nan_in_dropped) poison_dropped();
}

MoeData::Tensor MoeData::matrix(DType dtype, int64_t rows, int64_t cols) {
  return std::make_unique<PlacedTensor>(
      subject_.memory, subject_.memory, dtype, std::vector<verify::MatrixShape>{{rows, cols}},
      verify::MatrixShape{rows, cols}, Layout{.form = Placement::kRows}, random_);
}

MoeData::Tensor MoeData::matrices(DType dtype, int64_t rows, int64_t cols) {
  const std::vector<verify::MatrixShape> shapes(static_cast<size_t>(local_), {rows, cols});
  const Layout layout{.form = c_.lists ? Placement::kList : Placement::kStacked};
  return std::make_unique<PlacedTensor>(subject_.memory, subject_.memory, dtype, shapes,
                                        verify::MatrixShape{rows, cols}, layout, random_);
}

void MoeData::fill(PlacedTensor& tensor, double limit) {
  for (size_t e = 0; e < tensor.shapes().size(); ++e) {
    for (int64_t row = 0; row < tensor.shapes()[e].rows; ++row) {
      for (int64_t col = 0; col < tensor.shapes()[e].cols; ++col) {
        tensor.set(static_cast<int64_t>(e), row, col, random_.uniform(-limit, limit));
      }
    }
  }
}

void MoeData::allow(PlacedTensor& tensor) {
  for (size_t e = 0; e < tensor.shapes().size(); ++e) {
    for (int64_t row = 0; row < tensor.shapes()[e].rows; ++row) {
      for (int64_t col = 0; col < tensor.shapes()[e].cols; ++col) {
        tensor.allow_change(static_cast<int64_t>(e), row, col);
      }
    }
  }
}

void MoeData::poison_dropped() {
  for (int64_t t = 0; t < routing_.tokens; ++t) {
    bool dropped = true;
    for (int64_t j = 0; j < routing_.top_k; ++j) {
      if (routing_.slot_row[static_cast<size_t>(t * routing_.top_k + j)] >= 0) {
        dropped = false;
      } else {
        router_->set(0, t, j, kNan);
      }
    }
    for (int64_t col = 0; dropped && col < c_.h; ++col) {
      x_->set(0, t, col, kNan);
      dout_->set(0, t, col, kNan);
    }
  }
}

std::vector<PlacedTensor*> MoeData::inputs() const {
  return {w13_.get(),    w2_.get(),     bias13_.get(),   bias2_.get(), x_.get(),
          router_.get(), shared_.get(), residual_.get(), dout_.get()};
}

std::vector<PlacedTensor*> MoeData::results() const {
  return {out_.get(), preact_.get(),  dx_.get(),     drouter_.get(),  dw13_.get(),
          dw2_.get(), dbias13_.get(), dbias2_.get(), d_preact_.get(), activated_.get()};
}

double MoeData::w13(int64_t e, int64_t n, int64_t k) const {
  return c_.transposed ? w13_->before(e, k, n) : w13_->before(e, n, k);
}
double MoeData::w2(int64_t e, int64_t k, int64_t n) const {
  return c_.transposed ? w2_->before(e, n, k) : w2_->before(e, k, n);
}

int64_t MoeData::expert_of(int64_t slot) const {
  if (routing_.slot_row[static_cast<size_t>(slot)] < 0) return -1;
  const int64_t e = routing_.ids[static_cast<size_t>(slot)] - c_.first;
  return e >= 0 && e < local_ ? e : -1;
}

MoeMlpRouting MoeData::routing_args() const {
  if (c_.sorted) return {.group_sizes = sizes_->sizes(), .group_offset = c_.first};
  return {.group_sizes = sizes_->sizes(),
          .source_row = source_->vector_view(),
          .slot_row = slot_->view(),
          .weights = c_.weighted ? router_->matrix_view() : TensorView{},
          .group_offset = c_.first};
}

Status MoeData::run() {
  MoeMlp layer({.w13 = w13_->tensor(),
                .w2 = w2_->tensor(),
                .bias13 = c_.biases ? bias13_->tensor() : GroupedTensor{},
                .bias2 = c_.biases ? bias2_->tensor() : GroupedTensor{},
                .transposed = c_.transposed},
               c_.options);
  Context& context = subject_.context;
  verify::Memory& memory = subject_.memory;
  // A workspace off any alignment and full of NaN.
  std::unique_ptr<verify::GuardedBuffer> workspace;
  const auto give = [&](size_t bytes, CallOptions* options) {
    workspace = std::make_unique<verify::GuardedBuffer>(memory, bytes + 8, std::byte{0xff});
    workspace->upload();
    options->workspace = bytes == 0 ? nullptr : static_cast<std::byte*>(workspace->data()) + 8;
    options->workspace_size_bytes = bytes;
  };
  MoeMlpForwardArgs args{.x = x_->matrix_view(),
                         .routing = routing_args(),
                         .shared = c_.shared ? shared_->matrix_view() : TensorView{},
                         .residual = c_.residual ? residual_->matrix_view() : TensorView{},
                         .out = out_->matrix_view(),
                         .preact = c_.saves ? preact_->matrix_view() : TensorView{}};
  size_t bytes = 0;
  Status status = layer.forward_workspace_size(context, args, &bytes);
  if (!status.ok()) return status;
  give(bytes, &args.options);
  MoeMlpSaved saved;
  if (status = layer.forward(context, args, &saved); !status.ok()) return status;
  if (status = memory.finish(context); !status.ok() || !c_.saves) return status;

  const auto rows = [&](WantedGradient which, const Tensor& tensor) {
    return wants(which) ? tensor->matrix_view() : TensorView{};
  };
  const auto experts = [&](WantedGradient which, const Tensor& tensor) {
    return wants(which) ? tensor->tensor() : GroupedTensor{};
  };
  MoeMlpBackwardArgs grad{.dout = dout_->matrix_view(),
                          .dx = rows(kWantDx, dx_),
                          .dweights = c_.weighted ? rows(kWantDweights, drouter_) : TensorView{},
                          .dw13 = experts(kWantDw13, dw13_),
                          .dw2 = experts(kWantDw2, dw2_),
                          .dw_beta = c_.accumulates || c_.adds_to_zeros ? 1.0 : 0.0,
                          .dbias13 = c_.biases ? experts(kWantDbias13, dbias13_) : GroupedTensor{},
                          .dbias2 = c_.biases ? experts(kWantDbias2, dbias2_) : GroupedTensor{},
                          .accumulate_dbias = c_.accumulates || c_.adds_to_zeros};
  if (c_.options.delay_wgrad) {
    grad.d_preact = d_preact_->matrix_view();
    grad.activated = activated_->matrix_view();
  }
  if (c_.over_preact) grad.d_preact = preact_->matrix_view();
  if (status = layer.backward_workspace_size(context, saved, grad, &bytes); !status.ok()) {
    return status;
  }
  give(bytes, &grad.options);
  if (status = layer.backward(context, saved, grad); !status.ok()) return status;
  if (status = layer.backward_dw(context, grad.options); !status.ok()) return status;
  return memory.finish(context);
}

Failures MoeData::check() {
  expect_everything();
  verify::Memory& memory = subject_.memory;
  memory.together([&] {
    for (PlacedTensor* tensor : inputs()) tensor->upload();
    for (PlacedTensor* tensor : results()) tensor->upload();
    slot_->upload();
    source_->upload();
    sizes_->upload();
  });
  if (Status status = run(); !status.ok()) return {status.message()};
  memory.together([&] {
    for (PlacedTensor* tensor : inputs()) tensor->download();
    for (PlacedTensor* tensor : results()) tensor->download();
  });
  Failures failures;
  compare(*out_, "out", sum_, 0, false, &failures);
  if (c_.saves) {
    if (!c_.over_preact) compare(*preact_, "preact", pre_, 0, false, &failures);
    compare_gradients(&failures);
  }
  for (const PlacedTensor* tensor : results()) {
    int64_t offset = 0;
    if (!tensor->untouched_elsewhere(&offset)) {
      failures.push_back(text("byte ", offset, " outside the elements of a result changed"));
    }
  }
  for (const PlacedTensor* tensor : inputs()) {
    if (!tensor->unchanged()) failures.emplace_back("an input was written");
  }
  for (std::string& failure : failures) {
    failure = text(routing_.tokens, " tokens, top_k ", routing_.top_k, ", ", routing_.num_experts,
                   " experts, h ", c_.h, ", i ", c_.i, ", activation ",
                   static_cast<int>(c_.options.activation.kind), ": ", failure);
  }
  return failures;
}

void MoeData::compare_gradients(Failures* failures) const {
  if (wants(kWantDx)) compare(*dx_, "dx", dx_sum_, 0, false, failures);
  if (c_.weighted && wants(kWantDweights)) {
    compare(*drouter_, "dweights", drouter_sum_, 0, false, failures);
  }
  for (int64_t e = 0; e < local_; ++e) {
    const auto expert = static_cast<size_t>(e);
    const bool turned = c_.transposed;
    if (wants(kWantDw13)) compare(*dw13_, "dw13", dw13_sum_[expert], e, turned, failures);
    if (wants(kWantDw2)) compare(*dw2_, "dw2", dw2_sum_[expert], e, turned, failures);
    if (!c_.biases) continue;
    if (wants(kWantDbias13))
      compare(*dbias13_, "dbias13", dbias13_sum_[expert], e, false, failures);
    if (wants(kWantDbias2)) compare(*dbias2_, "dbias2", dbias2_sum_[expert], e, false, failures);
  }
}

void MoeData::compare(const PlacedTensor& got, const char* what, const Bounded& expected,
                      int64_t matrix, bool turned, Failures* failures) const {
  const verify::MatrixShape shape = got.shapes()[static_cast<size_t>(matrix)];
  for (int64_t row = 0; row < shape.rows; ++row) {
    for (int64_t col = 0; col < shape.cols; ++col) {
      const verify::Expected one = expected.get(turned ? col : row, turned ? row : col);
      const double value = got.after(matrix, row, col);
      if (verify::agrees(got.dtype(), one, value) || failures->size() > 3) continue;
      failures->push_back(text(what, "[", matrix, ", ", row, ", ", col, "] = ", value,
                               ", expected ", one.value, " within ",
                               verify::tolerance_of(got.dtype(), one)));
    }
  }
}

std::vector<std::byte> MoeData::bits_of_token(int64_t t) const {
  std::vector<std::byte> bits;
  for (const PlacedTensor* tensor : {out_.get(), dx_.get(), drouter_.get()}) {
    for (int64_t col = 0; col < tensor->shapes()[0].cols; ++col) {
      const std::vector<std::byte> one = tensor->bytes_after(0, t, col);
      bits.insert(bits.end(), one.begin(), one.end());
    }
  }
  return bits;
}

std::vector<std::byte> MoeData::bits_of_gradients() const {
  std::vector<std::byte> bits;
  for (const PlacedTensor* tensor : {dx_.get(), drouter_.get(), dw13_.get(), dw2_.get()}) {
    const std::vector<std::byte>& all = tensor->all_bytes_after();
    bits.insert(bits.end(), all.begin(), all.end());
  }
  return bits;
}

std::vector<MoeData::Gradient> MoeData::gradients() const {
  return {{"dx", dx_.get(), wants(kWantDx)},
          {"dweights", drouter_.get(), c_.weighted && wants(kWantDweights)},
          {"dw13", dw13_.get(), wants(kWantDw13)},
          {"dw2", dw2_.get(), wants(kWantDw2)},
          {"dbias13", dbias13_.get(), c_.biases && wants(kWantDbias13)},
          {"dbias2", dbias2_.get(), c_.biases && wants(kWantDbias2)}};
}

std::string MoeData::first_difference(const MoeData& other) const {
  const std::vector<Gradient> mine = gradients(), theirs = other.gradients();
  for (size_t g = 0; g < mine.size(); ++g) {
    if (!mine[g].asked || !theirs[g].asked) continue;
    const std::vector<verify::MatrixShape>& shapes = mine[g].tensor->shapes();
    for (size_t e = 0; e < shapes.size(); ++e) {
      for (int64_t row = 0; row < shapes[e].rows; ++row) {
        for (int64_t col = 0; col < shapes[e].cols; ++col) {
          const auto matrix = static_cast<int64_t>(e);
          const double here = mine[g].tensor->after(matrix, row, col);
          const double there = theirs[g].tensor->after(matrix, row, col);
          if (here == there) continue;
          return text(mine[g].name, "[", matrix, ", ", row, ", ", col, "] = ", here, " and ",
                      there);
        }
      }
    }
  }
  return {};
}

void MoeData::copy_layer(const MoeData& whole) {
  for (int64_t t = 0; t < routing_.tokens; ++t) copy_token(whole, t, t);
  const auto copy = [&](PlacedTensor& to, const PlacedTensor& from) {
    for (int64_t e = 0; e < local_; ++e) {
      const verify::MatrixShape shape = to.shapes()[static_cast<size_t>(e)];
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t col = 0; col < shape.cols; ++col) {
          to.set(e, row, col, from.before(c_.first - whole.c_.first + e, row, col));
        }
      }
    }
  };
  copy(*w13_, *whole.w13_);
  copy(*w2_, *whole.w2_);
  copy(*bias13_, *whole.bias13_);
  copy(*bias2_, *whole.bias2_);
}

void MoeData::copy_token(const MoeData& from, int64_t there, int64_t here) {
  for (int64_t col = 0; col < c_.h; ++col) {
    x_->set(0, here, col, from.x_->before(0, there, col));
    dout_->set(0, here, col, from.dout_->before(0, there, col));
  }
  for (int64_t j = 0; j < routing_.top_k; ++j) {
    router_->set(0, here, j, from.router_->before(0, there, j));
  }
}

}  // namespace cadre::contract
