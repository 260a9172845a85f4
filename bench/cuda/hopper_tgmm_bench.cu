// Times the Hopper tgmm kernel (weight gradients) on the training shapes against a dense cuBLAS
// product of the same m, k, n in the same run. Results are checked first.
// usage: hopper_tgmm_bench [--only TEXT] [--case bf16|f16|f32] [--repeats N] [--skew S]
//        [--json FILE] [--instances] [--orders]
//   --case: output of the operands' type, or (f32) bf16 operands accumulated into fp32; default:
//   bf16 and f32; --instances: every instantiation, not only the chosen one; --orders: other
//   heights of the bands of tiles
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>

#include "bench/cuda/dense_cublas.h"
#include "bench/cuda/device.h"
#include "bench/shapes/shapes.h"
#include "cuda/sm90/tgmm_launch.h"

namespace cadre::bench {
namespace {

using shapes::Shape;
using sm90::TgmmCall;
using sm90::TgmmConfig;

struct Options {
  std::string only;
  std::string json;
  std::string result;
  int repeats = 11;
  bool instances = false;
  bool orders = false;
  std::vector<double> skews = {0, 1};
};

struct Sample {
  int64_t group, row, column, begin, end;
};

// One warp for each sample: the product in fp32, and what the kernel gave.
template <typename T>
__global__ void sample_products(const T* lhs, const T* rhs, const void* out, bool wide,
                                const Sample* samples, int64_t k, int64_t n, float* want,
                                float* got) {
  const Sample s = samples[blockIdx.x];
  float sum = 0;
  for (int64_t r = s.begin + threadIdx.x; r < s.end; r += 32) {
    sum += static_cast<float>(lhs[r * k + s.row]) * static_cast<float>(rhs[r * n + s.column]);
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  if (threadIdx.x != 0) return;
  const int64_t at = (s.group * k + s.row) * n + s.column;
  want[blockIdx.x] = sum;
  got[blockIdx.x] = wide ? static_cast<const float*>(out)[at]
                         : static_cast<float>(static_cast<const T*>(out)[at]);
}

template <typename T>
__global__ void count_not_finite(const T* data, int64_t count, unsigned long long* bad) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (!isfinite(static_cast<float>(data[i]))) atomicAdd(bad, 1ull);
  }
}

// What one timed call is.
struct Contender {
  std::string name;
  TgmmCall call;
  TgmmConfig config;
};

class Workload {
 public:
  // lhs = dy [m, n], rhs = x [m, k]: the gradient of weights stored [g, n, k], as a Linear has
  // them.
  Workload(const Shape& shape, double skew, int sm_count, DType element)
      : element_(element),
        m_(shape.m()),
        k_(shape.n),
        n_(shape.k),
        groups_(shape.num_groups),
        sm_count_(sm_count),
        sizes_(shapes::router_group_sizes(shape.num_groups, shape.m(), skew, 1)),
        lhs_(m_ * k_ * 2),
        rhs_(m_ * n_ * 2),
        out_(groups_ * k_ * n_ * 4),
        device_sizes_(groups_ * 8),
        offsets_((groups_ + 1) * 8),
        plan_(sm90::tgmm_plan_bytes(groups_)),
        fault_(4),
        counter_(4) {
    counter_.fill_byte(0);
    device_sizes_.upload(sizes_);
    fault_.fill_byte(0);
    if (element == DType::kBF16) {
      randomize<__nv_bfloat16>(lhs_, 1, 1.0f);
      randomize<__nv_bfloat16>(rhs_, 2, 0.05f);
    } else {
      randomize<__half>(lhs_, 1, 1.0f);
      randomize<__half>(rhs_, 2, 0.05f);
    }
  }

  TgmmCall call(DType output, bool accumulates) const {
    TgmmCall call;
    call.element = element_;
    call.output = output;
    call.k = k_;
    call.n = n_;
    call.lhs = lhs_.as();
    call.lhs_stride = k_;
    call.rhs = rhs_.as();
    call.rhs_stride = n_;
    call.out = {.base = out_.as(), .group_stride = k_ * n_, .row_stride = n_};
    call.c = call.out;
    call.beta.value = accumulates ? 1 : 0;
    call.groups = {.sizes = device_sizes_.as(),
                   .form = cuda::SizesForm::kI64,
                   .m = m_,
                   .num_groups = groups_,
                   .num_local = groups_,
                   .fault = fault_.as<int32_t>()};
    return call;
  }

  void launch(const Contender& contender) const {
    const sm90::TgmmWorkspace workspace = {offsets_.as<int64_t>(), plan_.as<sm90::TgmmPlan>(),
                                           counter_.as<uint32_t>()};
    cuda::Launch launch;
    launch.op = "tgmm";
    launch.sm_count = sm_count_;
    const Status status = sm90::launch_tgmm(launch, contender.call, contender.config, workspace);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      std::exit(1);
    }
  }

  // Relative error over samples, corners of every matrix among them; infinite if any output is not
  // finite. Accumulation starts from zeros here.
  template <typename T>
  double error(const Contender& contender) {
    std::vector<Sample> samples;
    uint32_t state = 12345;
    auto next = [&state](int64_t bound) {
      state = state * 1664525u + 1013904223u;
      return static_cast<int64_t>(state >> 4) % bound;
    };
    int64_t begin = 0;
    for (int64_t g = 0; g < groups_; ++g) {
      for (int i = 0; i < 24; ++i) {
        samples.push_back({g,
                           i == 0   ? 0
                           : i == 1 ? k_ - 1
                                    : next(k_),
                           i == 0   ? n_ - 1
                           : i == 1 ? 0
                                    : next(n_),
                           begin, begin + sizes_[g]});
      }
      begin += sizes_[g];
    }
    const bool wide = contender.call.output == DType::kF32;
    const int64_t count = static_cast<int64_t>(samples.size());
    DeviceBuffer device_samples(count * sizeof(Sample)), want(count * 4), got(count * 4), bad(8);
    device_samples.upload(samples);
    bad.fill_byte(0);
    out_.fill_byte(contender.config.instance->with_c ? 0 : 0xff);
    launch(contender);
    sample_products<<<count, 32>>>(lhs_.as<T>(), rhs_.as<T>(), out_.as(), wide,
                                   device_samples.as<Sample>(), k_, n_, want.as<float>(),
                                   got.as<float>());
    auto* bad_count = bad.as<unsigned long long>();
    if (wide) {
      count_not_finite<<<1024, 256>>>(out_.as<float>(), groups_ * k_ * n_, bad_count);
    } else {
      count_not_finite<<<1024, 256>>>(out_.as<T>(), groups_ * k_ * n_, bad_count);
    }
    BENCH_CUDA(cudaDeviceSynchronize());
    if (bad.download<unsigned long long>()[0] != 0) return INFINITY;
    const std::vector<float> a = want.download<float>();
    const std::vector<float> b = got.download<float>();
    double difference = 0;
    double norm = 0;
    for (int64_t i = 0; i < count; ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += a[i] * a[i];
    }
    return std::sqrt(difference / norm);
  }

  void run_dense(const DenseCublas& dense) const {
    if (!dense.available()) return;
    dense.weight_gradient(lhs_.as(), rhs_.as(), out_.as(), static_cast<int>(m_),
                          static_cast<int>(k_), static_cast<int>(n_),
                          element_ == DType::kBF16 ? CUDA_R_16BF : CUDA_R_16F);
  }

  double flops() const { return 2.0 * m_ * k_ * n_; }
  double bytes(const Contender& contender) const {
    const double each = contender.call.output == DType::kF32 ? 4 : 2;
    const double passes = contender.config.instance->with_c ? 2 : 1;
    return 2.0 * m_ * (k_ + n_) + each * passes * groups_ * k_ * n_;
  }

 private:
  DType element_;
  int64_t m_, k_, n_, groups_;
  int sm_count_;
  std::vector<int64_t> sizes_;
  DeviceBuffer lhs_, rhs_, out_, device_sizes_, offsets_, plan_, fault_, counter_;
};

std::string describe(const std::string& result, const TgmmConfig& config) {
  std::ostringstream name;
  name << result << " " << config.instance->name.substr(10) << " band " << config.band;
  return name.str();
}

DType element_of(const Options& options) {
  return options.result == "f16" ? DType::kF16 : DType::kBF16;
}

// The chosen configuration first, then what was asked for beside it.
std::vector<Contender> contenders_of(const Workload& work, const Options& options) {
  std::vector<Contender> contenders;
  const DType element = element_of(options);
  for (const bool accumulates : {false, true}) {
    const std::string result(accumulates ? "f32" : name_of(element));
    if (!options.result.empty() && options.result != result) continue;
    const DType output = accumulates ? DType::kF32 : element;
    const TgmmConfig chosen =
        choose_tgmm_config(element, accumulates ? sm90::TgmmBeta::kGiven : sm90::TgmmBeta::kAbsent);
    std::vector<TgmmConfig> configs = {chosen};
    if (options.instances) {
      for (const sm90::TgmmInstance& instance : sm90::tgmm_instances_of(element)) {
        if (&instance == chosen.instance || instance.with_c != accumulates) continue;
        configs.push_back({.instance = &instance});
      }
    }
    if (options.orders) {
      for (const int band : {4, 8, 32}) configs.push_back({chosen.instance, band});
    }
    for (const TgmmConfig& config : configs) {
      contenders.push_back({describe(result, config), work.call(output, accumulates), config});
    }
  }
  return contenders;
}

bool bench(const Shape& shape, double skew, const Options& options, const DenseCublas& dense,
           int sm_count, std::vector<std::string>* rows) {
  const DType element = element_of(options);
  Workload work(shape, skew, sm_count, element);
  const std::vector<Contender> contenders = contenders_of(work, options);
  bool right = true;
  std::vector<double> errors;
  std::vector<std::function<void()>> timed = {[&] { work.run_dense(dense); }};
  for (const Contender& contender : contenders) {
    errors.push_back(element == DType::kBF16 ? work.error<__nv_bfloat16>(contender)
                                             : work.error<__half>(contender));
    right = right && errors.back() < (contender.call.output == DType::kF32 ? 1e-4 : 4e-3);
    timed.push_back([&] { work.launch(contender); });
  }
  const std::vector<double> times = time_interleaved(timed, options.repeats);
  const double flops = work.flops();
  std::printf("%s skew %.0f: dense %.1f TFLOP/s\n", std::string(shape.name).c_str(), skew,
              flops / times[0] * 1e-12);
  for (size_t i = 0; i < contenders.size(); ++i) {
    const double seconds = times[i + 1];
    const double bandwidth = work.bytes(contenders[i]) / seconds * 1e-12;
    std::printf("  %-34s %.3f of dense, %6.1f TFLOP/s, %.2f TB/s, error %.1e%s\n",
                contenders[i].name.c_str(), times[0] / seconds, flops / seconds * 1e-12, bandwidth,
                errors[i], std::isfinite(errors[i]) ? "" : " WRONG");
    std::ostringstream row;
    row << "{\"shape\": \"" << shape.name << "\", \"skew\": " << skew << ", \"case\": \"wgrad "
        << contenders[i].name << "\", \"seconds\": " << seconds
        << ", \"tflops\": " << flops / seconds * 1e-12 << ", \"of_dense\": " << times[0] / seconds
        << ", \"dense_tflops\": " << flops / times[0] * 1e-12 << ", \"tb_per_s\": " << bandwidth
        << "}";
    rows->push_back(row.str());
  }
  std::fflush(stdout);
  return right;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--instances" || name == "--orders") {
      (name == "--orders" ? options.orders : options.instances) = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : "";
    if (name == "--only") options.only = value;
    if (name == "--case") options.result = value;
    if (name == "--json") options.json = value;
    if (name == "--repeats") options.repeats = std::atoi(value);
    if (name == "--skew") options.skews = {std::atof(value)};
  }
  return options;
}

int run(const Options& options) {
  int sm_count = 0;
  BENCH_CUDA(cudaDeviceGetAttribute(&sm_count, cudaDevAttrMultiProcessorCount, 0));
  const DenseCublas dense;
  if (!dense.available()) std::printf("no cuBLAS found: ratios to dense mean nothing\n");
  std::vector<std::string> rows;
  bool right = true;
  for (const Shape& shape : shapes::tagged("train")) {
    if (std::string(shape.name).find(options.only) == std::string::npos) continue;
    for (const double skew : options.skews) {
      right = bench(shape, skew, options, dense, sm_count, &rows) && right;
    }
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    cudaDeviceProp properties;
    BENCH_CUDA(cudaGetDeviceProperties(&properties, 0));
    file << "{\"device\": \"" << properties.name << "\", \"repeats\": " << options.repeats
         << ", \"rows\": [\n";
    for (size_t i = 0; i < rows.size(); ++i) {
      file << rows[i] << (i + 1 < rows.size() ? ",\n" : "\n");
    }
    file << "]}\n";
  }
  std::printf("%s\n", right ? "all results right" : "WRONG RESULTS");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) { return cadre::bench::run(cadre::bench::parse(argc, argv)); }
