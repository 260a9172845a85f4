// One training shape in one direction on the GPU.
#include "bench/gpu/workload.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cadre::bench {
namespace {

using Element = __nv_bfloat16;

__global__ void fill_random(Element* data, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint64_t x = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull + seed;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    const auto bits = static_cast<uint32_t>(x >> 40);
    data[i] = __float2bfloat16(static_cast<float>(bits) * 0x1p-23f - 1.0f);
  }
}

size_t bytes_of(int64_t elements) { return static_cast<size_t>(elements) * sizeof(Element); }

void fill(const DeviceBuffer& data, int64_t count, uint32_t seed) {
  fill_random<<<1024, 256>>>(static_cast<Element*>(data.get()), count, seed);
  require(cudaGetLastError(), "fill_random");
}

__global__ void check_samples(const Element* a, const Element* b, const Element* d,
                              const ProductSample* samples, int count, float* worst) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const ProductSample s = samples[i];
  double sum = 0;
  double size = 0;
  for (int64_t j = 0; j < s.count; ++j) {
    const double term = static_cast<double>(__bfloat162float(a[s.a + j * s.a_step])) *
                        static_cast<double>(__bfloat162float(b[s.b + j * s.b_step]));
    sum += term;
    size += fabs(term);
  }
  // One rounding to bf16, and f32 sums on the way.
  const double allowed = fabs(sum) * 0x1p-8 + size * 0x1p-20 + 1e-30;
  const double error = fabs(static_cast<double>(__bfloat162float(d[s.d])) - sum) / allowed;
  worst[i] = error == error ? static_cast<float>(error) : 1e30f;
}

}  // namespace

const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::kForward:
      return "forward";
    case Pass::kDgrad:
      return "dgrad";
    default:
      return "wgrad";
  }
}

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

DeviceBuffer::DeviceBuffer(size_t size_bytes) {
  require(cudaMalloc(&data_, size_bytes), "cudaMalloc");
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

Workload::Workload(const shapes::Shape& shape, Pass pass)
    : shape_(shape),
      pass_(pass),
      sizes_(shapes::router_group_sizes(shape.num_groups, shape.m(), 0.0, 1)),
      x_(bytes_of(shape.m() * shape.k)),
      y_(bytes_of(shape.m() * shape.n)),
      w_(bytes_of(shape.num_groups * shape.n * shape.k)),
      device_sizes_(sizes_.size() * sizeof(int64_t)) {
  require(cudaMemcpy(device_sizes_.get(), sizes_.data(), sizes_.size() * sizeof(int64_t),
                     cudaMemcpyHostToDevice),
          "sizes");
}

double Workload::flops() const {
  return 2.0 * static_cast<double>(shape_.m()) * static_cast<double>(shape_.k) *
         static_cast<double>(shape_.n);
}

void Workload::run(Context& context, const char* kernel) const {
  const Device device{DeviceKind::kCuda, 0};
  const int64_t m = shape_.m(), k = shape_.k, n = shape_.n, g = shape_.num_groups;
  const GroupSizes sizes(device_sizes_.get(), DType::kI64, g, device);
  const auto view = [&](const DeviceBuffer& data, std::initializer_list<int64_t> dims) {
    return TensorView::contiguous(data.get(), DType::kBF16, dims, device);
  };
  const auto call = [&] {
    if (pass_ == Pass::kWgrad) {
      TgmmArgs args{.lhs = view(y_, {m, n}),
                    .rhs = view(x_, {m, k}),
                    .group_sizes = sizes,
                    .out = view(w_, {g, n, k})};
      args.options.config = kernel;
      return tgmm(context, args);
    }
    const bool forward = pass_ == Pass::kForward;
    GmmArgs args{.lhs = forward ? view(x_, {m, k}) : view(y_, {m, n}),
                 .rhs = view(w_, {g, n, k}),
                 .group_sizes = sizes,
                 .out = forward ? view(y_, {m, n}) : view(x_, {m, k}),
                 .transpose_rhs = forward};
    args.options.config = kernel;
    return gmm(context, args);
  };
  if (const Status status = call(); !status.ok()) throw std::runtime_error(status.message());
}

void Workload::run_dense(const DenseBaseline& dense) const {
  const int64_t m = shape_.m(), k = shape_.k, n = shape_.n;
  const DenseProduct products[] = {{x_.get(), w_.get(), y_.get(), m, n, k, false, true},
                                   {y_.get(), w_.get(), x_.get(), m, k, n, false, false},
                                   {y_.get(), x_.get(), w_.get(), n, k, m, true, false}};
  if (!dense.multiply(nullptr, products[static_cast<int>(pass_)])) {
    throw std::runtime_error("cublasGemmEx failed");
  }
}

void Workload::fill_inputs() const {
  if (pass_ != Pass::kForward) fill(y_, shape_.m() * shape_.n, 2);
  if (pass_ != Pass::kDgrad) fill(x_, shape_.m() * shape_.k, 1);
  if (pass_ != Pass::kWgrad) fill(w_, shape_.num_groups * shape_.n * shape_.k, 3);
}

float Workload::worst_error(Context& context, const char* kernel) const {
  fill_inputs();
  const DeviceBuffer& result = pass_ == Pass::kForward ? y_ : pass_ == Pass::kDgrad ? x_ : w_;
  require(cudaMemset(result.get(), 0xff, bytes_of(result_elements())), "poison");
  run(context, kernel);
  const std::vector<ProductSample> samples = draw_samples();
  const auto count = static_cast<int>(samples.size());
  const DeviceBuffer device_samples(samples.size() * sizeof(ProductSample));
  const DeviceBuffer errors(samples.size() * sizeof(float));
  require(cudaMemcpy(device_samples.get(), samples.data(), samples.size() * sizeof(ProductSample),
                     cudaMemcpyHostToDevice),
          "samples");
  const void* a = pass_ == Pass::kForward ? x_.get() : y_.get();
  const void* b = pass_ == Pass::kWgrad ? x_.get() : w_.get();
  check_samples<<<(count + 127) / 128, 128>>>(
      static_cast<const Element*>(a), static_cast<const Element*>(b),
      static_cast<const Element*>(result.get()),
      static_cast<const ProductSample*>(device_samples.get()), count,
      static_cast<float*>(errors.get()));
  std::vector<float> host(samples.size());
  require(
      cudaMemcpy(host.data(), errors.get(), host.size() * sizeof(float), cudaMemcpyDeviceToHost),
      "check");
  return *std::max_element(host.begin(), host.end());
}

int64_t Workload::result_elements() const {
  if (pass_ == Pass::kForward) return shape_.m() * shape_.n;
  return pass_ == Pass::kDgrad ? shape_.m() * shape_.k : shape_.num_groups * shape_.n * shape_.k;
}

std::vector<ProductSample> Workload::draw_samples() const {
  std::vector<ProductSample> samples;
  const int64_t k = shape_.k, n = shape_.n;
  uint64_t state = 7;
  const auto draw = [&state](int64_t bound) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(bound));
  };
  int64_t begin = 0;
  for (size_t g = 0; g < sizes_.size(); ++g) {
    const int64_t weights = static_cast<int64_t>(g) * n * k;
    for (int i = 0; i < 8 && sizes_[g] > 0; ++i) {
      const int64_t row = begin + (i == 0 ? sizes_[g] - 1 : draw(sizes_[g]));
      const int64_t in_n = i == 1 ? n - 1 : draw(n);
      const int64_t in_k = i == 2 ? k - 1 : draw(k);
      if (pass_ == Pass::kForward) {
        samples.push_back({row * k, 1, weights + in_n * k, 1, row * n + in_n, k});
      } else if (pass_ == Pass::kDgrad) {
        samples.push_back({row * n, 1, weights + in_k, k, row * k + in_k, n});
      } else {
        samples.push_back(
            {begin * n + in_n, n, begin * k + in_k, k, weights + in_n * k + in_k, sizes_[g]});
      }
    }
    begin += sizes_[g];
  }
  return samples;
}

}  // namespace cadre::bench
