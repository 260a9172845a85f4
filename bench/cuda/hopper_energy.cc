// What a product costs in energy: gmm, a dense cuBLAS product of the same m, n, k and a plain read
// of memory, each repeated for a while, with the card's own energy counter and clock (NVML, opened
// at run time). On a card that runs at its power limit this is what bounds the speed; `cadre bench`
// times single calls and can't show it. usage: hopper_energy [seconds for each]
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "bench/cuda/product.h"

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
    require(cudaDeviceSynchronize(), name);
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

void measure_gmm(const Nvml& nvml, const shapes::Shape& shape, const std::string& name,
                 double seconds, double flops, double bytes) {
  Context context(ContextOptions{.backend = "cuda"});
  const Layer layer(shape, 0.0, Pass::kForward, DType::kBF16);
  const Product product(layer, {.name = name}, context, nullptr);
  measure(nvml, name, seconds, flops, bytes, [&] { product.run(); });
}

void measure_shape(const Nvml& nvml, const DenseCublas& dense, const shapes::Shape& shape,
                   double seconds) {
  const auto m = static_cast<double>(shape.m());
  const auto n = static_cast<double>(shape.n);
  const auto k = static_cast<double>(shape.k);
  const auto num_groups = static_cast<double>(shape.num_groups);
  const double flops = 2 * m * n * k;
  const double rows_bytes = 2 * m * (n + k);
  const double matrix_bytes = 2 * n * k;
  const std::string name(shape.name);
  shapes::Shape one_expert = shape;
  one_expert.num_groups = 1;
  {
    const Layer layer(one_expert, 0.0, Pass::kForward, DType::kBF16);
    const DeviceBuffer out(static_cast<size_t>(layer.dense_elements()) * size_of(DType::kBF16));
    const DenseProduct product = layer.dense(out.get());
    measure(nvml, name + ", dense", seconds, flops, rows_bytes + matrix_bytes,
            [&] { dense.multiply(product); });
  }
  measure_gmm(nvml, shape, name + ", gmm", seconds, flops, rows_bytes + matrix_bytes * num_groups);
  // The same kernel with a dense product's bytes.
  measure_gmm(nvml, one_expert, name + ", gmm, one expert", seconds, flops,
              rows_bytes + matrix_bytes);
}

int run(double seconds) {
  const Nvml nvml;
  DenseCublas dense;
  const std::string no_dense = dense.open(nullptr);
  if (!nvml.available() || !no_dense.empty()) {
    std::fprintf(stderr, "hopper_energy: %s\n",
                 no_dense.empty() ? "no NVML here" : no_dense.c_str());
    return 1;
  }
  const DeviceBuffer memory(size_t{4} << 30);
  fill_random(memory.get(), DType::kF32, static_cast<int64_t>(memory.size_bytes() / 4), 1, 1.0f);
  measure(nvml, "idle", seconds, 0, 0, [] {});
  measure(nvml, "read of memory", seconds, 0, static_cast<double>(memory.size_bytes()),
          [&] { read_bytes(memory.get(), memory.size_bytes(), nullptr); });
  for (const shapes::Shape& shape : shapes::tagged("train")) {
    const bool asked = shape.name.starts_with("qwen3") || shape.name.starts_with("gpt-oss") ||
                       shape.name == "dsv3-ep8-w2";
    if (asked) measure_shape(nvml, dense, shape, seconds);
  }
  return 0;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  try {
    return cadre::bench::run(argc > 1 ? std::atof(argv[1]) : 1.0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "hopper_energy: %s\n", error.what());
    return 1;
  }
}
