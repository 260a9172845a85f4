// Times the Hopper gmm kernel on the shapes of the goals table against a dense cuBLAS product of
// the same m, n, k in the same run. Results are checked first. usage: hopper_gmm_bench [--json
// FILE] [--only TEXT] [--repeats N] [--skew S] [--shape N] [--static] [--clean-flush] [--options]
// [--compare]
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "bench/cuda/dense_cublas.h"
#include "bench/cuda/device.h"
#include "bench/cuda/moe_shapes.h"
#include "cuda/sm90/launch_gmm.h"

namespace cadre::bench {
namespace {

struct Options {
  std::string json;
  std::string only;
  int repeats = 15;
  std::vector<double> skews = {0, 1};
  int shape = -1;       // a GmmShapeKind; -1: what the heuristic says
  bool dynamic = true;  // CTAs claim their tiles
  Flush flush = Flush::kWrite;
  bool epilogues = false;  // also what each epilogue option costs
  bool compare = false;    // every shape of the kernel instead of the chosen one
};

struct Sample {
  int row, column, group;
};

// One warp for each sample.
template <typename T>
__global__ void sample_products(const T* lhs, const T* rhs, const Sample* samples, int n, int k,
                                bool transposed, float* out) {
  const Sample s = samples[blockIdx.x];
  float sum = 0;
  for (int i = threadIdx.x; i < k; i += 32) {
    const int64_t group = int64_t{s.group} * n * k;
    const int64_t at =
        transposed ? group + int64_t{s.column} * k + i : group + int64_t{i} * n + s.column;
    sum += static_cast<float>(lhs[int64_t{s.row} * k + i]) * static_cast<float>(rhs[at]);
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <typename T>
__global__ void gather_samples(const T* out, const Sample* samples, int n, float* values) {
  values[threadIdx.x + blockIdx.x * blockDim.x] =
      static_cast<float>(out[int64_t{samples[threadIdx.x + blockIdx.x * blockDim.x].row} * n +
                             samples[threadIdx.x + blockIdx.x * blockDim.x].column]);
}

template <typename T>
__global__ void count_not_finite(const T* data, int64_t count, unsigned long long* bad) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    if (!isfinite(static_cast<float>(data[i]))) atomicAdd(bad, 1ull);
  }
}

// One shape with its data on the device.
class Workload {
 public:
  Workload(const MoeShape& shape, double skew, int sm_count, const Options& options)
      : shape_(shape),
        sm_count_(sm_count),
        kernel_shape_(options.shape),
        dynamic_(options.dynamic),
        sizes_(route(shape.experts, shape.rows, skew, 1)),
        lhs_(int64_t{shape.rows} * shape.k * 2),
        rhs_(int64_t{shape.experts} * shape.n * shape.k * 2),
        out_(int64_t{shape.rows} * shape.n * 4),
        device_sizes_(shape.experts * 4),
        row_scale_(shape.rows * 4),
        bias_(int64_t{shape.experts} * shape.n * 4),
        fault_(4),
        counter_(4) {
    counter_.fill_byte(0);
    device_sizes_.upload(sizes_);
    randomize<float>(row_scale_, 3, 1.0f);
    randomize<float>(bias_, 4, 1.0f);
    fill<__nv_bfloat16>();
  }

  template <typename T>
  void fill() {
    randomize<T>(lhs_, 1, 1.0f);
    randomize<T>(rhs_, 2, 1.0f / std::sqrt(static_cast<float>(shape_.k)));
  }

  sm90::GmmCall call(bool transposed) const {
    sm90::GmmCall call;
    call.transposed_rhs = transposed;
    call.m = shape_.rows;
    call.n = shape_.n;
    call.k = shape_.k;
    call.lhs = lhs_.as();
    call.lhs_stride = shape_.k;
    call.rhs = rhs_.as();
    call.rhs_group_stride = int64_t{shape_.n} * shape_.k;
    call.rhs_row_stride = transposed ? shape_.k : shape_.n;
    call.out = out_.as();
    call.out_stride = shape_.n;
    call.groups.sizes = device_sizes_.as();
    call.groups.form = cuda::SizesForm::kI32;
    call.groups.num_groups = call.groups.num_local = shape_.experts;
    call.groups.fault = fault_.as<int32_t>();
    if (dynamic_) call.tile_counter = counter_.as<uint32_t>();
    return call;
  }

  void launch(const sm90::GmmCall& call) const {
    const sm90::GmmOutput output = {call.epilogue.out == sm90::ElementKind::kF32,
                                    call.epilogue.has_c};
    sm90::GmmConfig config =
        sm90::choose_gmm_config({call.m, call.n, call.k, shape_.experts, 0, output}, sm_count_);
    const auto wanted = static_cast<sm90::GmmShapeKind>(kernel_shape_);
    if (kernel_shape_ >= 0 && !shape_.decode && sm90::takes_output(wanted, output)) {
      config.shape = wanted;
    }
    launch(call, config);
  }

  // On a shape of the kernel that may be another one than the heuristic's.
  void launch(const sm90::GmmCall& call, sm90::GmmConfig config) const {
    if (config.ctas == 0) config.ctas = sm_count_;
    cuda::Launch launch;
    launch.op = "gmm";
    const Status status = sm90::launch_gmm(launch, call, config);
    if (!status.ok()) {
      std::fprintf(stderr, "%s\n", status.message().c_str());
      std::exit(1);
    }
  }

  // Relative error over samples (the first and last row of every group among them); infinite if any
  // output is not finite.
  template <typename T>
  double error(const sm90::GmmCall& call) {
    std::vector<Sample> samples;
    uint32_t state = 12345;
    auto next = [&state](int bound) {
      state = state * 1664525u + 1013904223u;
      return static_cast<int>((state >> 8) % static_cast<uint32_t>(bound));
    };
    int first = 0;
    for (int g = 0; g < shape_.experts; ++g) {
      for (int i = 0; i < 32 && sizes_[g] > 0; ++i) {
        const int row = i == 0 ? 0 : i == 1 ? sizes_[g] - 1 : next(sizes_[g]);
        const int column = i < 4 ? (i % 2 == 0 ? 0 : shape_.n - 1) : next(shape_.n);
        samples.push_back({first + row, column, g});
      }
      first += sizes_[g];
    }
    const int count = static_cast<int>(samples.size());
    DeviceBuffer device_samples(count * sizeof(Sample)), want(count * 4), got(count * 4), bad(8);
    device_samples.upload(samples);
    bad.fill_byte(0);
    out_.fill_byte(0xff);
    launch(call);
    sample_products<T><<<count, 32>>>(lhs_.as<T>(), rhs_.as<T>(), device_samples.as<Sample>(),
                                      shape_.n, shape_.k, call.transposed_rhs, want.as<float>());
    gather_samples<T>
        <<<count / 32, 32>>>(out_.as<T>(), device_samples.as<Sample>(), shape_.n, got.as<float>());
    count_not_finite<T><<<1024, 256>>>(out_.as<T>(), int64_t{shape_.rows} * shape_.n,
                                       bad.as<unsigned long long>());
    BENCH_CUDA(cudaDeviceSynchronize());
    if (bad.download<unsigned long long>()[0] != 0) return INFINITY;
    const std::vector<float> a = want.download<float>();
    const std::vector<float> b = got.download<float>();
    double difference = 0;
    double norm = 0;
    for (int i = 0; i < count; ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += a[i] * a[i];
    }
    return std::sqrt(difference / norm);
  }

  const MoeShape& shape() const { return shape_; }
  const DeviceBuffer& lhs() const { return lhs_; }
  const DeviceBuffer& rhs() const { return rhs_; }
  const DeviceBuffer& out() const { return out_; }
  const DeviceBuffer& row_scale() const { return row_scale_; }
  const DeviceBuffer& bias() const { return bias_; }
  double flops() const { return 2.0 * shape_.rows * shape_.k * shape_.n; }
  double weight_bytes() const {
    const auto used = shape_.experts - std::count(sizes_.begin(), sizes_.end(), 0);
    return 2.0 * used * shape_.n * shape_.k;
  }

 private:
  MoeShape shape_;
  int sm_count_;
  int kernel_shape_;
  bool dynamic_;
  std::vector<int> sizes_;
  DeviceBuffer lhs_, rhs_, out_, device_sizes_, row_scale_, bias_, fault_, counter_;
};

std::string json_row(const MoeShape& shape, double skew, const std::string& what, double seconds,
                     double flops, double ratio, double weight_bytes) {
  std::ostringstream row;
  row << "{\"shape\": \"" << shape.name << "\", \"skew\": " << skew << ", \"case\": \"" << what
      << "\", \"seconds\": " << seconds << ", \"tflops\": " << flops / seconds * 1e-12
      << ", \"of_dense\": " << ratio << ", \"weights_tb_per_s\": " << weight_bytes / seconds * 1e-12
      << "}";
  return row.str();
}

// Dense, then forward and dgrad, each against its own dense product.
bool bench_products(Workload& work, double skew, const DenseCublas& dense, const Options& options,
                    std::vector<std::string>* rows) {
  const MoeShape& shape = work.shape();
  const sm90::GmmCall forward = work.call(true);
  const sm90::GmmCall dgrad = work.call(false);
  const double forward_error = work.error<__nv_bfloat16>(forward);
  const double dgrad_error = work.error<__nv_bfloat16>(dgrad);
  const bool right = forward_error < 4e-3 && dgrad_error < 4e-3;
  auto run_dense = [&](bool transposed) {
    if (dense.available()) {
      dense.product(work.lhs().as(), work.rhs().as(), work.out().as(), shape.rows, shape.n, shape.k,
                    transposed, CUDA_R_16BF);
    }
  };
  const std::vector<double> times =
      time_interleaved({[&] { run_dense(true); }, [&] { work.launch(forward); },
                        [&] { run_dense(false); }, [&] { work.launch(dgrad); }},
                       options.repeats, options.flush);
  const double flops = work.flops();
  const char* names[] = {"dense", "forward", "dense, b [k,n]", "dgrad"};
  for (int i = 0; i < 4; ++i) {
    rows->push_back(json_row(shape, skew, names[i], times[i], flops, times[i / 2 * 2] / times[i],
                             work.weight_bytes()));
  }
  std::printf(
      "%-24s skew %.0f | dense %6.1f | forward %6.1f (%.3f) | dense kn %6.1f | dgrad %6.1f (%.3f) "
      "TFLOP/s | "
      "weights %.2f %.2f TB/s | error %.1e %.1e%s\n",
      shape.name.c_str(), skew, flops / times[0] * 1e-12, flops / times[1] * 1e-12,
      times[0] / times[1], flops / times[2] * 1e-12, flops / times[3] * 1e-12, times[2] / times[3],
      work.weight_bytes() / times[1] * 1e-12, work.weight_bytes() / times[3] * 1e-12, forward_error,
      dgrad_error, right ? "" : "  WRONG");
  std::fflush(stdout);
  return right;
}

// Dense and every shape of the kernel that is meant for many rows, in turn.
void bench_shapes(Workload& work, double skew, const DenseCublas& dense, const Options& options,
                  std::vector<std::string>* rows) {
  using sm90::GmmShapeKind;
  const MoeShape& shape = work.shape();
  constexpr GmmShapeKind kShapes[] = {GmmShapeKind::kLarge, GmmShapeKind::kTurn,
                                      GmmShapeKind::kGeneral};
  const char* names[] = {"256x192", "128x192", "128x256"};
  for (const bool transposed : {true, false}) {
    const sm90::GmmCall call = work.call(transposed);
    std::vector<std::function<void()>> contenders = {[&, transposed] {
      dense.product(work.lhs().as(), work.rhs().as(), work.out().as(), shape.rows, shape.n, shape.k,
                    transposed, CUDA_R_16BF);
    }};
    for (const GmmShapeKind kind : kShapes) {
      contenders.push_back([&work, &call, kind] { work.launch(call, {.shape = kind}); });
    }
    const std::vector<double> times = time_interleaved(contenders, options.repeats, options.flush);
    std::printf("%-24s skew %.0f %-7s: dense %6.1f TFLOP/s", shape.name.c_str(), skew,
                transposed ? "forward" : "dgrad", work.flops() / times[0] * 1e-12);
    for (int i = 0; i < 3; ++i) {
      std::printf(" | %s %.3f", names[i], times[0] / times[i + 1]);
      rows->push_back(
          json_row(shape, skew, std::string(transposed ? "forward " : "dgrad ") + names[i],
                   times[i + 1], work.flops(), times[0] / times[i + 1], work.weight_bytes()));
    }
    std::printf("\n");
  }
}

// What an option costs against the plain product.
void bench_epilogues(Workload& work, double skew, int repeats, std::vector<std::string>* rows) {
  const sm90::GmmCall plain = work.call(true);
  sm90::GmmCall factors = plain;
  factors.epilogue.bias.data = work.bias().as();
  factors.epilogue.bias_group_stride = plain.n;
  factors.epilogue.row_scale.data = work.row_scale().as();
  sm90::GmmCall accumulate = plain;
  accumulate.c = plain.out;
  accumulate.c_stride = plain.out_stride;
  accumulate.epilogue.has_c = true;
  accumulate.epilogue.beta_value = 1.0f;
  accumulate.zero_other_rows = false;
  sm90::GmmCall wide = plain;
  wide.epilogue.out = sm90::ElementKind::kF32;
  sm90::GmmCall wide_accumulate = accumulate;
  wide_accumulate.epilogue.out = sm90::ElementKind::kF32;
  sm90::GmmCall half = plain;
  half.element = half.epilogue.out = sm90::ElementKind::kF16;
  const std::vector<sm90::GmmCall> calls = {plain, factors,         accumulate,
                                            wide,  wide_accumulate, half};
  const char* names[] = {"plain",   "bias and row scale", "accumulate",
                         "f32 out", "f32 accumulate",     "f16"};
  std::vector<std::function<void()>> contenders;
  for (const sm90::GmmCall& call : calls)
    contenders.push_back([&work, &call] { work.launch(call); });
  const std::vector<double> times = time_interleaved(contenders, repeats);
  std::printf("%-24s options:", work.shape().name.c_str());
  for (size_t i = 0; i < calls.size(); ++i) {
    rows->push_back(json_row(work.shape(), skew, names[i], times[i], work.flops(),
                             times[0] / times[i], work.weight_bytes()));
    std::printf(" %s %.3f", names[i], times[0] / times[i]);
  }
  std::printf("\n");
}

// Host seconds of one launch: a small problem, so that the queue never fills.
double host_cost(int sm_count, const Options& options) {
  const Workload work({"small", 8, 64, 64, 64, false}, 0, sm_count, options);
  const sm90::GmmCall call = work.call(true);
  constexpr int kCalls = 200;
  double best = 1;
  for (int round = 0; round < 20; ++round) {
    BENCH_CUDA(cudaDeviceSynchronize());
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCalls; ++i) work.launch(call);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / kCalls);
  }
  BENCH_CUDA(cudaDeviceSynchronize());
  return best;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : "";
    if (name == "--static") {
      options.dynamic = false;
      continue;
    }
    if (name == "--clean-flush") {
      options.flush = Flush::kRead;
      continue;
    }
    if (name == "--compare") {
      options.compare = true;
      continue;
    }
    if (name == "--options") {
      options.epilogues = true;
      continue;
    }
    ++i;
    if (name == "--json") options.json = value;
    if (name == "--only") options.only = value;
    if (name == "--repeats") options.repeats = std::atoi(value);
    if (name == "--shape") options.shape = std::atoi(value);
    if (name == "--skew") options.skews = {std::atof(value)};
  }
  return options;
}

int run(const Options& options) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  cudaDeviceProp device;
  BENCH_CUDA(cudaGetDeviceProperties(&device, 0));
  const int sm_count = device.multiProcessorCount;
  const double host_seconds = host_cost(sm_count, options);
  std::printf("host time of a call %.2f us\n", host_seconds * 1e6);
  const DenseCublas dense;
  if (!dense.available()) std::printf("no cuBLAS found: ratios to dense mean nothing\n");
  std::vector<std::string> rows;
  bool right = true;
  for (const MoeShape& shape : moe_shapes()) {
    if (shape.name.find(options.only) == std::string::npos) continue;
    for (const double skew : options.skews) {
      Workload work(shape, skew, sm_count, options);
      if (options.compare) {
        bench_shapes(work, skew, dense, options, &rows);
        continue;
      }
      right = bench_products(work, skew, dense, options, &rows) && right;
      if (options.epilogues && !shape.decode && skew == 0)
        bench_epilogues(work, skew, options.repeats, &rows);
    }
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << "{\"device\": \"" << device.name << "\", \"repeats\": " << options.repeats
         << ", \"flush\": \"" << (options.flush == Flush::kRead ? "read" : "write")
         << "\", \"host_seconds_per_call\": " << host_seconds << ", \"rows\": [\n";
    for (size_t i = 0; i < rows.size(); ++i)
      file << rows[i] << (i + 1 < rows.size() ? ",\n" : "\n");
    file << "]}\n";
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) { return cadre::bench::run(cadre::bench::parse(argc, argv)); }
