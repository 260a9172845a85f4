// What a product costs in energy: the Hopper gmm kernel, a dense cuBLAS product of the same m, n, k
// and a plain read of memory, each repeated for a while, with the card's own energy counter and
// clock (NVML, opened at run time). On a card that runs at its power limit this is what bounds the
// speed. usage: hopper_energy [seconds for each]
#include <chrono>
#include <cmath>
#include <string>

#include "bench/cuda/dense_cublas.h"
#include "bench/cuda/device.h"
#include "bench/cuda/moe_shapes.h"
#include "cuda/sm90/launch_gmm.h"

namespace cadre::bench {
namespace {

// The functions of NVML that are used; all return 0 when they could.
class Nvml {
 public:
  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
    const auto handle = reinterpret_cast<int (*)(unsigned, void**)>(
        dlsym(library, "nvmlDeviceGetHandleByIndex_v2"));
    energy_ = reinterpret_cast<int (*)(void*, unsigned long long*)>(
        dlsym(library, "nvmlDeviceGetTotalEnergyConsumption"));
    clock_ =
        reinterpret_cast<int (*)(void*, int, unsigned*)>(dlsym(library, "nvmlDeviceGetClockInfo"));
    available_ = init != nullptr && handle != nullptr && energy_ != nullptr && clock_ != nullptr &&
                 init() == 0 && handle(0, &device_) == 0;
  }

  bool available() const { return available_; }
  double joules() const {
    unsigned long long millijoules = 0;
    energy_(device_, &millijoules);
    return static_cast<double>(millijoules) * 1e-3;
  }
  unsigned sm_megahertz() const {
    constexpr int kClockSm = 1;
    unsigned megahertz = 0;
    clock_(device_, kClockSm, &megahertz);
    return megahertz;
  }

 private:
  bool available_ = false;
  void* device_ = nullptr;
  int (*energy_)(void*, unsigned long long*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
};

// Runs `call` again and again; the counter is read after a first third, when the card has settled.
void measure(const Nvml& nvml, const std::string& name, double seconds, double flops, double bytes,
             const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  constexpr int kBatch = 20;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  double from_joules = 0;
  double from_seconds = -1;
  double megahertz = 0;
  int64_t calls = 0;
  int64_t samples = 0;
  while (elapsed() < seconds) {
    for (int i = 0; i < kBatch; ++i) call();
    megahertz += nvml.sm_megahertz();
    ++samples;
    BENCH_CUDA(cudaDeviceSynchronize());
    calls += kBatch;
    if (from_seconds < 0 && elapsed() > seconds / 3) {
      from_seconds = elapsed();
      from_joules = nvml.joules();
      calls = 0;
      samples = 0;
      megahertz = 0;
    }
  }
  const double took = elapsed() - from_seconds;
  const double joules = nvml.joules() - from_joules;
  const double per_call = took / static_cast<double>(calls);
  std::printf("%-44s %7.1f TFLOP/s %5.2f TB/s %4.0f W %5.0f MHz %8.2f mJ a call\n", name.c_str(),
              flops / per_call * 1e-12, bytes / per_call * 1e-12, joules / took,
              megahertz / static_cast<double>(samples), joules / static_cast<double>(calls) * 1e3);
  std::fflush(stdout);
}

void measure_shape(const Nvml& nvml, const DenseCublas& dense, const MoeShape& shape, int sm_count,
                   double seconds) {
  const std::vector<int> sizes = route(shape.experts, shape.rows, 0, 1);
  DeviceBuffer lhs(int64_t{shape.rows} * shape.k * 2), out(int64_t{shape.rows} * shape.n * 2),
      rhs(int64_t{shape.experts} * shape.n * shape.k * 2), device_sizes(shape.experts * 4),
      fault(4), counter(4);
  device_sizes.upload(sizes);
  counter.fill_byte(0);
  fault.fill_byte(0);
  randomize<__nv_bfloat16>(lhs, 1, 1.0f);
  randomize<__nv_bfloat16>(rhs, 2, 1.0f / std::sqrt(static_cast<float>(shape.k)));
  sm90::GmmCall call;
  call.m = shape.rows;
  call.n = shape.n;
  call.k = shape.k;
  call.lhs = lhs.as();
  call.lhs_stride = shape.k;
  call.rhs = rhs.as();
  call.rhs_group_stride = int64_t{shape.n} * shape.k;
  call.rhs_row_stride = shape.k;
  call.out = out.as();
  call.out_stride = shape.n;
  call.groups.sizes = device_sizes.as();
  call.groups.form = cuda::SizesForm::kI32;
  call.groups.m = shape.rows;
  call.groups.num_groups = call.groups.num_local = shape.experts;
  call.groups.fault = fault.as<int32_t>();
  call.tile_counter = counter.as<uint32_t>();
  const sm90::GmmConfig config =
      sm90::choose_gmm_config({call.m, call.n, call.k, shape.experts, 0, {}}, sm_count);
  cuda::Launch launch;
  launch.op = "gmm";
  const double flops = 2.0 * shape.rows * shape.n * shape.k;
  const double rows_bytes = 2.0 * shape.rows * (shape.n + shape.k);
  const double matrix_bytes = 2.0 * shape.n * shape.k;
  measure(nvml, shape.name + ", dense", seconds, flops, rows_bytes + matrix_bytes, [&] {
    dense.product(lhs.as(), rhs.as(), out.as(), shape.rows, shape.n, shape.k, true, CUDA_R_16BF);
  });
  measure(nvml, shape.name + ", gmm", seconds, flops, rows_bytes + matrix_bytes * shape.experts,
          [&] {
            const Status status = sm90::launch_gmm(launch, call, config);
            if (!status.ok()) std::exit(1);
          });
  // One expert for all rows: the same kernel and tiles of full width, with a dense product's bytes.
  std::vector<int> one(shape.experts, 0);
  one[0] = shape.rows;
  device_sizes.upload(one);
  measure(nvml, shape.name + ", gmm, one expert", seconds, flops, rows_bytes + matrix_bytes, [&] {
    const Status status = sm90::launch_gmm(launch, call, config);
    if (!status.ok()) std::exit(1);
  });
}

int run(double seconds) {
  const Nvml nvml;
  const DenseCublas dense;
  if (!nvml.available() || !dense.available()) {
    std::fprintf(stderr, "needs NVML and cuBLAS\n");
    return 1;
  }
  cudaDeviceProp device;
  BENCH_CUDA(cudaGetDeviceProperties(&device, 0));
  const size_t read_bytes = size_t{4} << 30;
  DeviceBuffer memory(read_bytes), sink(4);
  randomize<float>(memory, 1, 1.0f);
  measure(nvml, "idle", seconds, 0, 0, [] {});
  measure(nvml, "read of memory", seconds, 0, static_cast<double>(read_bytes), [&] {
    read_words<<<4096, 256>>>(memory.as<uint4>(), read_bytes / sizeof(uint4), sink.as<uint32_t>());
  });
  for (const MoeShape& shape : moe_shapes()) {
    const bool asked = shape.name.starts_with("qwen3") || shape.name.starts_with("gpt-oss") ||
                       shape.name == "dsv3-ep8 w2";
    if (asked && !shape.decode) {
      measure_shape(nvml, dense, shape, device.multiProcessorCount, seconds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) { return cadre::bench::run(argc > 1 ? std::atof(argv[1]) : 1.0); }
