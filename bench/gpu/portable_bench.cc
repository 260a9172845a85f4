// The portable kernels on the training shapes of at least 512 rows an expert: forward, dgrad and
// wgrad, each result checked on samples first, beside a dense cuBLAS product of the same m, n, k in
// the same run.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/gpu/dense_baseline.h"
#include "bench/gpu/workload.h"

namespace cadre::bench {
namespace {

struct Options {
  std::string json;
  std::string only;
  int repeats = 10;
  std::vector<std::string> kernels = {"sm80/mma_128x128x64", "sm80/mma_128x128x32"};
};

/// Times one call after another; the second-level cache is flushed before each.
class Timer {
 public:
  Timer() : flush_(kFlushBytes) {
    require(cudaEventCreate(&start_), "event");
    require(cudaEventCreate(&stop_), "event");
  }

  template <typename Call>
  float milliseconds(Call call) const {
    require(cudaMemsetAsync(flush_.get(), 0, kFlushBytes), "flush");
    require(cudaEventRecord(start_), "event");
    call();
    require(cudaEventRecord(stop_), "event");
    require(cudaEventSynchronize(stop_), "wait");
    float elapsed = 0;
    require(cudaEventElapsedTime(&elapsed, start_, stop_), "elapsed");
    return elapsed;
  }

 private:
  static constexpr size_t kFlushBytes = size_t{256} << 20;
  DeviceBuffer flush_;
  cudaEvent_t start_{}, stop_{};
};

double median(std::vector<float> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return static_cast<double>(values[values.size() / 2]);
}

/// Rows of the table for one shape and direction; false when a result was wrong.
bool measure(const Options& options, const shapes::Shape& shape, Pass pass, Context& context,
             const DenseBaseline& dense, const Timer& timer, nlohmann::json* rows) {
  constexpr int kWarmUps = 2;
  const Workload work(shape, pass);
  std::vector<float> errors;
  for (const std::string& kernel : options.kernels) {
    errors.push_back(work.worst_error(context, kernel.c_str()));
  }
  std::vector<std::vector<float>> times(options.kernels.size());
  std::vector<float> dense_times;
  for (int i = 0; i < options.repeats + kWarmUps; ++i) {
    for (size_t j = 0; j < times.size(); ++j) {
      const char* kernel = options.kernels[j].c_str();
      const float ms = timer.milliseconds([&] { work.run(context, kernel); });
      if (i >= kWarmUps) times[j].push_back(ms);
    }
    if (!dense.available()) continue;
    const float ms = timer.milliseconds([&] { work.run_dense(dense); });
    if (i >= kWarmUps) dense_times.push_back(ms);
  }
  const double dense_ms = median(dense_times);
  bool right = true;
  for (size_t j = 0; j < times.size(); ++j) {
    const double ms = median(times[j]);
    const double tflops = work.flops() / ms * 1e-9;
    const double ratio = dense_ms > 0 ? dense_ms / ms : 0;
    right &= errors[j] <= 1;
    std::printf("%-18s %-8s %-17s %6.1f TFLOP/s  %.3f of dense  worst error %.2f of allowed\n",
                std::string(shape.name).c_str(), name_of(pass), options.kernels[j].c_str(), tflops,
                ratio, static_cast<double>(errors[j]));
    rows->push_back({{"shape", shape.name},
                     {"skew", 0},
                     {"case", std::string("portable ") + name_of(pass)},
                     {"kernel", options.kernels[j]},
                     {"seconds", ms * 1e-3},
                     {"tflops", tflops},
                     {"dense_tflops", dense_ms > 0 ? work.flops() / dense_ms * 1e-9 : 0.0},
                     {"of_dense", ratio},
                     {"worst_error_of_allowed", errors[j]}});
  }
  return right;
}

int run(const Options& options) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    std::printf("skipped: no GPU\n");
    return 0;
  }
  Context context;
  DenseBaseline dense;
  const std::string no_dense = dense.open();
  if (!no_dense.empty()) std::printf("%s: no ratios\n", no_dense.c_str());
  const Timer timer;
  nlohmann::json rows = nlohmann::json::array();
  bool right = true;
  for (const shapes::Shape& shape : shapes::tagged("train")) {
    constexpr int64_t kRows = 512;
    if (shape.m() / shape.num_groups < kRows) continue;
    if (shape.name.find(options.only) == std::string_view::npos) continue;
    for (Pass pass : {Pass::kForward, Pass::kDgrad, Pass::kWgrad}) {
      right &= measure(options, shape, pass, context, dense, timer, &rows);
    }
  }
  if (!options.json.empty()) {
    const nlohmann::json all = {{"command", "portable_bench --json " + options.json},
                                {"device", properties.name},
                                {"dtype", "bf16"},
                                {"repeats", options.repeats},
                                {"dense", no_dense.empty() ? dense.library() : no_dense},
                                {"rows", rows}};
    std::ofstream(options.json) << all.dump(1) << "\n";
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace cadre::bench

int main(int argc, char** argv) {
  cadre::bench::Options options;
  CLI::App app{"Times cadre's portable CUDA kernels against dense cuBLAS"};
  app.add_option("--json", options.json, "write the results to this file");
  app.add_option("--only", options.only, "shapes whose name holds this text");
  app.add_option("--repeats", options.repeats, "timed calls of each kernel");
  app.add_option("--kernels", options.kernels, "kernels to pin")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    return cadre::bench::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "portable_bench: %s\n", error.what());
    return 1;
  }
}
