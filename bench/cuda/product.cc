// Calls through the public API, and the check of their results.
#include "bench/cuda/product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "backend/registry.h"
#include "core/convert.h"
#include "core/text.h"
#include "cuda/cuda_backend.h"
#include "ops/problem_of.h"
#include "verify/tolerance.h"

namespace cadre::bench {
namespace {

constexpr Device kDevice{DeviceKind::kCuda, 0};
constexpr double kBeta = 0.5;
constexpr int64_t kEpilogueSteps = 8;  // roundings of the epilogue, at most

/// Values around 1 of type `dtype`, as bytes for the device and as doubles.
DeviceBuffer random_vector(int64_t count, DType dtype, uint64_t seed, std::vector<double>* values) {
  std::vector<char> bytes(static_cast<size_t>(count) * size_of(dtype));
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    store_rounded(bytes.data(), dtype, i, 0.5 + static_cast<double>(state >> 11) * 0x1p-53);
    values->push_back(load_as_double(bytes.data(), dtype, i));
  }
  return DeviceBuffer::holding(bytes);
}

size_t bytes_of(int64_t elements, DType dtype) {
  return static_cast<size_t>(elements) * size_of(dtype);
}

void require_ok(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

/// Elements of `samples` as the device sees them now.
std::vector<SampledElement> elements_of(const Layer& layer, const void* out, DType out_dtype,
                                        const std::vector<Sample>& samples) {
  const DeviceBuffer on_device = DeviceBuffer::holding(samples);
  const DeviceBuffer elements(samples.size() * sizeof(SampledElement));
  sample_products({.a = layer.lhs().data,
                   .b = layer.rhs().data,
                   .dtype = layer.dtype(),
                   .out = out,
                   .out_dtype = out_dtype,
                   .samples = static_cast<const Sample*>(on_device.get()),
                   .num_samples = static_cast<int64_t>(samples.size()),
                   .elements = static_cast<SampledElement*>(elements.get())});
  return elements.download<SampledElement>();
}

int64_t not_finite_in(const DeviceBuffer& memory, DType dtype, int64_t elements) {
  const DeviceBuffer bad(sizeof(unsigned long long));
  bad.fill_bytes(0);
  count_not_finite(memory.get(), dtype, elements, static_cast<unsigned long long*>(bad.get()));
  return static_cast<int64_t>(bad.download<unsigned long long>()[0]);
}

void note(const verify::Expected& expected, double got, DType dtype, const Sample& sample,
          const Place& place, Checked* checked) {
  const double severity = verify::severity(dtype, expected, got);
  const double tolerance = verify::tolerance_of(dtype, expected);
  const double error = std::fabs(got - expected.value);
  double ratio = 0;
  if (severity > 0) {
    ratio = std::max(severity, std::nextafter(1.0, 2.0));  // it disagrees, however little
  } else if (tolerance > 0) {
    ratio = std::min(error / tolerance, 1.0);
  }
  ++checked->elements;
  if (checked->elements > 1 && ratio <= checked->ratio) return;
  checked->ratio = ratio;
  checked->max_error = error;
  checked->where = text("group ", place.group, ", element ", sample.out);
}

}  // namespace

std::string portable_backend() {
  const std::string name = "cuda_sm80";
  backend::Registry& registry = backend::Registry::instance();
  if (registry.find(name) == nullptr) registry.add_front(cuda::make_cuda_backend(name, "sm80/"));
  return name;
}

Product::Product(const Layer& layer, const Case& wanted, Context& context, cudaStream_t stream)
    : layer_(layer),
      case_(wanted),
      context_(context),
      out_(bytes_of(layer.out_elements(), wanted.out_dtype())) {
  if (layer.pass() == Pass::kWgrad) {
    make_tgmm(stream);
  } else {
    make_gmm(stream);
  }
}

void Product::make_gmm(cudaStream_t stream) {
  const shapes::Shape& shape = layer_.shape();
  gmm_ = {.lhs = layer_.lhs(),
          .rhs = layer_.rhs(),
          .group_sizes = layer_.group_sizes(),
          .out = layer_.out(out_, case_.out_dtype()),
          .transpose_rhs = layer_.pass() == Pass::kForward,
          .accumulate = case_.extras.accumulate};
  gmm_.options.stream = stream;
  gmm_.options.config = pinned();
  const auto vector_of = [](const DeviceBuffer& memory, int64_t count) {
    return TensorView::contiguous(memory.get(), DType::kF32, {count}, kDevice);
  };
  if (case_.extras.bias) {
    bias_ = random_vector(shape.num_groups * shape.n, case_.dtype, 3, &bias_values_);
    gmm_.bias = GroupedTensor::vectors(
        TensorView::contiguous(bias_.get(), case_.dtype, {shape.num_groups, shape.n}, kDevice));
  }
  if (case_.extras.scales) {
    bias_scale_ = random_vector(shape.m(), DType::kF32, 4, &bias_scale_values_);
    row_scale_ = random_vector(shape.m(), DType::kF32, 5, &row_scale_values_);
    gmm_.bias_scale = vector_of(bias_scale_, shape.m());
    gmm_.row_scale = vector_of(row_scale_, shape.m());
  }
  if (case_.extras.scales || case_.extras.c) {
    alpha_ = random_vector(shape.num_groups, DType::kF32, 6, &alpha_values_);
    gmm_.alpha = vector_of(alpha_, shape.num_groups);
  }
  if (case_.extras.c) {
    c_ = DeviceBuffer(out_.size_bytes());
    fill_random(c_.get(), case_.out_dtype(), layer_.out_elements(), 7, 1.0f);
    gmm_.c = layer_.out(c_, case_.out_dtype());
    gmm_.beta = kBeta;
  }
  if (case_.extras.list) gmm_.rhs = listed(layer_.rhs());
}

void Product::make_tgmm(cudaStream_t stream) {
  const TensorView out = layer_.out(out_, case_.out_dtype());
  tgmm_ = {.lhs = layer_.lhs(),
           .rhs = layer_.rhs(),
           .group_sizes = layer_.group_sizes(),
           .out = out,
           .accumulate = case_.extras.accumulate};
  tgmm_.options.stream = stream;
  tgmm_.options.config = pinned();
  if (case_.extras.list) tgmm_.out = listed(out);
}

GroupedTensor Product::listed(const TensorView& stacked) {
  const int64_t step = stacked.strides[0] * static_cast<int64_t>(size_of(stacked.dtype));
  for (int64_t group = 0; group < stacked.shape[0]; ++group) {
    host_pointers_.push_back(static_cast<char*>(stacked.data) + group * step);
  }
  const TensorView like =
      TensorView::contiguous(nullptr, stacked.dtype, {stacked.shape[1], stacked.shape[2]}, kDevice);
  if (!case_.extras.list_on_device) {
    return GroupedTensor::list(host_pointers_.data(), stacked.shape[0], like);
  }
  pointers_ = DeviceBuffer::holding(host_pointers_);
  return GroupedTensor::list(static_cast<void* const*>(pointers_.get()), stacked.shape[0], like,
                             kDevice);
}

void Product::run() const {
  require_ok(layer_.pass() == Pass::kWgrad ? tgmm(context_, tgmm_) : gmm(context_, gmm_));
}

std::string Product::kernel() const {
  plan::Problem problem;
  require_ok(layer_.pass() == Pass::kWgrad ? ops::problem_of(tgmm_, &problem)
                                           : ops::problem_of(gmm_, &problem));
  backend::Selection selection;
  require_ok(backend::Registry::instance().select(context_.state(), problem, pinned(), &selection));
  return std::string(selection.config.kernel);
}

void Product::apply_epilogue(const Place& place, double c, double* value, double* magnitude) const {
  const auto at = [](const std::vector<double>& values, int64_t index, double otherwise) {
    return values.empty() ? otherwise : values[static_cast<size_t>(index)];
  };
  const double alpha = at(alpha_values_, place.group, 1);
  const double row_scale = at(row_scale_values_, place.row, 1);
  const double bias = at(bias_values_, place.group * layer_.columns() + place.column, 0) *
                      at(bias_scale_values_, place.row, 1);
  const double beta = case_.extras.accumulate ? 1 : case_.extras.c ? kBeta : 0;
  *value = row_scale * (alpha * *value + bias) + beta * c;
  *magnitude = std::fabs(row_scale) * (std::fabs(alpha) * *magnitude + std::fabs(bias)) +
               std::fabs(beta * c);
}

std::vector<SampledElement> Product::prepare() const {
  if (case_.extras.accumulate) {
    fill_random(out_.get(), case_.out_dtype(), layer_.out_elements(), 8, 1.0f);
  } else {
    out_.fill_bytes(0xff);  // NaN in every element
  }
  const DeviceBuffer& c = c_.empty() ? out_ : c_;
  return elements_of(layer_, c.get(), case_.out_dtype(), layer_.draw_samples().samples);
}

Checked Product::compare(const std::vector<SampledElement>& before) const {
  const Samples samples = layer_.draw_samples();
  const DType dtype = case_.out_dtype();
  const std::vector<SampledElement> after = elements_of(layer_, out_.get(), dtype, samples.samples);
  Checked checked{.not_finite = not_finite_in(out_, dtype, layer_.out_elements())};
  const bool has_c = case_.extras.accumulate || case_.extras.c;
  for (size_t i = 0; i < after.size(); ++i) {
    double value = after[i].sum;
    double magnitude = after[i].magnitude;
    apply_epilogue(samples.places[i], has_c ? before[i].out : 0, &value, &magnitude);
    checked.bits = (checked.bits ^ std::bit_cast<uint64_t>(after[i].out)) * 0x9e3779b97f4a7c15u;
    checked.bits ^= checked.bits >> 29;
    const double bound =
        verify::rounding_bound(DType::kF32, samples.samples[i].count + kEpilogueSteps, magnitude);
    note({value, bound}, after[i].out, dtype, samples.samples[i], samples.places[i], &checked);
  }
  return checked;
}

Checked Product::check() const {
  const std::vector<SampledElement> before = prepare();
  run();
  require(cudaDeviceSynchronize(), case_.name);
  return compare(before);
}

Checked check_dense(const Layer& layer, const DenseCublas& dense, const DeviceBuffer& memory,
                    cudaStream_t stream) {
  const Samples samples = layer.draw_dense_samples();
  memory.fill_bytes(0xff);
  require(cudaDeviceSynchronize(), "the poison");
  dense.multiply(layer.dense(memory.get()));
  require(cudaStreamSynchronize(stream), "cublasGemmEx");
  const std::vector<SampledElement> after =
      elements_of(layer, memory.get(), layer.dtype(), samples.samples);
  Checked checked{.not_finite = not_finite_in(memory, layer.dtype(), layer.dense_elements())};
  for (size_t i = 0; i < after.size(); ++i) {
    const double bound =
        verify::rounding_bound(DType::kF32, samples.samples[i].count, after[i].magnitude);
    note({after[i].sum, bound}, after[i].out, layer.dtype(), samples.samples[i], samples.places[i],
         &checked);
  }
  return checked;
}

}  // namespace cadre::bench
