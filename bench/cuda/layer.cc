// One expert layer in one direction on the GPU.
#include "bench/cuda/layer.h"

#include <algorithm>
#include <cmath>

namespace cadre::bench {
namespace {

constexpr Device kDevice{DeviceKind::kCuda, 0};
constexpr uint64_t kRouterSeed = 1;
constexpr int kSamplesOfGroup = 24;

size_t bytes_of(int64_t elements, DType dtype) {
  return static_cast<size_t>(elements) * size_of(dtype);
}

}  // namespace

Layer::Layer(const shapes::Shape& shape, double skew, Pass pass, DType dtype)
    : shape_(shape),
      pass_(pass),
      dtype_(dtype),
      sizes_(shapes::router_group_sizes(shape.num_groups, shape.m(), skew, kRouterSeed)) {
  const bool wgrad = pass == Pass::kWgrad;
  const int64_t lhs_elements = shape.m() * (wgrad ? shape.n : shape.k);
  const int64_t rhs_elements = wgrad ? shape.m() * shape.k : shape.num_groups * shape.n * shape.k;
  lhs_ = DeviceBuffer(bytes_of(lhs_elements, dtype));
  rhs_ = DeviceBuffer(bytes_of(rhs_elements, dtype));
  // Results are of the order of 1, as in a trained layer.
  const int64_t terms = wgrad ? shape.m() / shape.num_groups : shape.k;
  const double deviation = 1.0 / std::sqrt(static_cast<double>(terms));
  fill_random(lhs_.get(), dtype, lhs_elements, 1, 1.0f);
  fill_random(rhs_.get(), dtype, rhs_elements, 2, static_cast<float>(deviation));
  std::vector<int32_t> narrow(sizes_.begin(), sizes_.end());
  device_sizes_ = DeviceBuffer::holding(narrow);
}

int64_t Layer::used_groups() const {
  return std::count_if(sizes_.begin(), sizes_.end(), [](int64_t rows) { return rows > 0; });
}

int64_t Layer::columns() const { return pass_ == Pass::kWgrad ? shape_.k : shape_.n; }

int64_t Layer::out_elements() const {
  return pass_ == Pass::kWgrad ? shape_.num_groups * shape_.n * shape_.k : shape_.m() * shape_.n;
}

int64_t Layer::dense_elements() const {
  return pass_ == Pass::kWgrad ? shape_.n * shape_.k : shape_.m() * shape_.n;
}

TensorView Layer::lhs() const {
  const int64_t columns = pass_ == Pass::kWgrad ? shape_.n : shape_.k;
  return TensorView::contiguous(lhs_.get(), dtype_, {shape_.m(), columns}, kDevice);
}

TensorView Layer::rhs() const {
  const int64_t g = shape_.num_groups, n = shape_.n, k = shape_.k;
  switch (pass_) {
    case Pass::kForward:
      return TensorView::contiguous(rhs_.get(), dtype_, {g, n, k}, kDevice);
    case Pass::kDgrad:
      return TensorView::contiguous(rhs_.get(), dtype_, {g, k, n}, kDevice);
    default:
      return TensorView::contiguous(rhs_.get(), dtype_, {shape_.m(), k}, kDevice);
  }
}

GroupSizes Layer::group_sizes() const {
  return {device_sizes_.get(), DType::kI32, shape_.num_groups, kDevice};
}

TensorView Layer::out(const DeviceBuffer& memory, DType dtype) const {
  if (pass_ == Pass::kWgrad) {
    return TensorView::contiguous(memory.get(), dtype, {shape_.num_groups, shape_.n, shape_.k},
                                  kDevice);
  }
  return TensorView::contiguous(memory.get(), dtype, {shape_.m(), shape_.n}, kDevice);
}

void Layer::add_samples(int64_t group, int64_t begin, int64_t end, Samples* samples) const {
  const int64_t k = shape_.k, n = shape_.n;
  const bool wgrad = pass_ == Pass::kWgrad;
  uint64_t state = static_cast<uint64_t>(group) + 7;
  const auto draw = [&state](int64_t bound) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(bound));
  };
  // The first four are the corners.
  const auto pick = [&draw](int i, int bit, int64_t bound) {
    return i < 4 ? ((i >> bit) & 1) * (bound - 1) : draw(bound);
  };
  const int64_t weights = group * n * k;
  for (int i = 0; i < kSamplesOfGroup; ++i) {
    if (wgrad) {
      const int64_t in_n = pick(i, 0, n);
      const int64_t in_k = pick(i, 1, k);
      samples->samples.push_back({.a = begin * n + in_n,
                                  .a_step = n,
                                  .b = begin * k + in_k,
                                  .b_step = k,
                                  .count = end - begin,
                                  .out = weights + in_n * k + in_k});
      samples->places.push_back({group, begin, in_k});
      continue;
    }
    if (begin == end) return;
    const int64_t row = begin + pick(i, 0, end - begin);
    const int64_t column = pick(i, 1, n);
    const bool transposed = pass_ == Pass::kForward;
    samples->samples.push_back({.a = row * k,
                                .a_step = 1,
                                .b = weights + (transposed ? column * k : column),
                                .b_step = transposed ? 1 : n,
                                .count = k,
                                .out = row * n + column});
    samples->places.push_back({group, row, column});
  }
}

Samples Layer::draw_samples() const {
  Samples samples;
  int64_t begin = 0;
  for (size_t group = 0; group < sizes_.size(); ++group) {
    add_samples(static_cast<int64_t>(group), begin, begin + sizes_[group], &samples);
    begin += sizes_[group];
  }
  return samples;
}

// A dense product is the layer's with all rows in the first group.
Samples Layer::draw_dense_samples() const {
  Samples samples;
  add_samples(0, 0, shape_.m(), &samples);
  return samples;
}

DenseProduct Layer::dense(void* d) const {
  const int64_t m = shape_.m(), k = shape_.k, n = shape_.n;
  if (pass_ == Pass::kWgrad) {
    return {lhs_.get(), rhs_.get(), d, n, k, m, true, false, dtype_};
  }
  return {lhs_.get(), rhs_.get(), d, m, n, k, false, pass_ == Pass::kForward, dtype_};
}

}  // namespace cadre::bench
