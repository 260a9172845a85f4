// cadre bench: options, the choice of the device's implementation, the result file.
#include "bench.h"

#include <fmt/core.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cadre/version.h"
#include "command.h"
#include "core/text.h"
#include "machine.h"

namespace cadre::cli {
namespace {

std::string device_names() {
  std::string names;
  for (const BenchDevice& device : bench_devices()) {
    names += text(names.empty() ? "" : ", ", device.name);
  }
  return names.empty() ? "none" : names;
}

nlohmann::json machine_of(const std::string& device) {
  if (device == "cpu") {
    const CpuInfo cpu = cpu_info();
    return {{"model", cpu.model},
            {"logical_cpus", cpu.logical_cpus},
            {"openmp_threads", cpu.openmp_threads},
            {"features", cpu.features}};
  }
  nlohmann::json devices = nlohmann::json::array();
  for (const CudaDeviceInfo& info : cuda_devices()) {
    devices.push_back({{"name", info.name}, {"sm_count", info.sm_count}});
  }
  return {{"devices", devices}};
}

Status write_file(const std::string& path, const nlohmann::json& document) {
  std::ofstream file(path);
  file << document.dump(2) << '\n';
  file.close();
  if (!file) return Status::invalid(text("--json = \"", path, "\", expected a writable file"));
  return {};
}

int run(const BenchOptions& options, const std::string& json_path, const std::string& command) {
  const BenchDevice* found = nullptr;
  for (const BenchDevice& device : bench_devices()) {
    if (device.name == options.device) found = &device;
  }
  if (found == nullptr) {
    return report("bench", Status::unsupported(text(
                               "--device = ", options.device,
                               ", but the benchmarks in this build are for: ", device_names())));
  }
  if (!options.kernel.empty() && options.device != "cuda") {
    return report("bench", Status::invalid(text("--kernel = ", options.kernel,
                                                ", but --device = ", options.device,
                                                ", expected cuda (CADRE_ISA is the CPU's)")));
  }
  const bool cpu_alone = !options.rows.empty() || !options.threads.empty() || options.seconds > 0 ||
                         options.small_pages;
  if (cpu_alone && options.device != "cpu") {
    return report("bench", Status::invalid(text(
                               "--rows, --threads, --seconds or --small-pages, but --device = ",
                               options.device, ", expected cpu")));
  }
  // The file is made before the measuring, so that a wrong path costs no minutes.
  nlohmann::json document = {{"schema", 1}, {"cadre", version()}, {"command", command}};
  if (!json_path.empty()) {
    if (Status status = write_file(json_path, document); !status.ok()) {
      return report("bench", status);
    }
  }
  nlohmann::json results;
  bool checks_passed = true;
  if (Status status = found->run(options, &results, &checks_passed); !status.ok()) {
    return report("bench", status);
  }
  document["device"] = options.device;
  document["machine"] = machine_of(options.device);
  document["checks_passed"] = checks_passed;
  document["results"] = std::move(results);
  if (!json_path.empty()) {
    if (Status status = write_file(json_path, document); !status.ok()) {
      return report("bench", status);
    }
    fmt::print("wrote {}\n", json_path);
  }
  if (!checks_passed) fmt::print(stderr, "cadre bench: a result failed its check\n");
  return checks_passed ? kOk : kCheckFailed;
}

}  // namespace

std::vector<BenchDevice>& bench_devices() {
  static std::vector<BenchDevice> devices;
  return devices;
}

void add_bench(CLI::App& app, int* exit_code) {
  struct Options {
    BenchOptions bench;
    std::string json_path;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "bench", "Measure speed on this machine; every result is checked before it is timed");
  command->add_option("--device", options->bench.device, "Where to measure")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option("--op", options->bench.ops,
                   "Only these: gmm, gmm_nt (rhs stored [n, k]), tgmm; with --device cuda also "
                   "options (of the epilogue), portable (kernels), host (cost of a call)")
      ->delimiter(',');
  command
      ->add_option("--shape", options->bench.shapes,
                   "Only shapes of these names or tags (train, decode) of bench/shapes")
      ->delimiter(',');
  command->add_option(
      "--dtype", options->bench.dtype,
      "Element type of the operands; default: f32, bf16 and i8, on cuda bf16 and f16");
  command
      ->add_option("--repeats", options->bench.repeats,
                   "Timed runs of each case; default: up to 200, on cuda 15")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--rows", options->bench.rows,
                   "Only these rows per expert (only with --device cpu); default: 1 to 1024")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--threads", options->bench.threads,
                   "Numbers of threads (only with --device cpu); default: 1 and all")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--seconds", options->bench.seconds,
                   "Time for the rounds of each case (only with --device cpu); default: 1.2")
      ->check(CLI::PositiveNumber);
  command->add_flag("--small-pages", options->bench.small_pages,
                    "Operands in whatever pages the system gives (only with --device cpu); "
                    "default: huge pages are asked for, for everything that is compared");
  command->add_option("--kernel", options->bench.kernel,
                      "Pin a kernel that cadre explain names (only with --device cuda)");
  command->add_option("--json", options->json_path, "Write the results to this file")
      ->type_name("FILE");
  command->footer(
      "Examples:\n"
      "  cadre bench --device cpu\n"
      "  cadre bench --device cpu --op gmm,tgmm --dtype bf16 --json results.json\n"
      "  cadre bench --device cpu --rows 64,256 --threads 1 --seconds 3\n"
      "  cadre bench --device cuda --json results.json\n"
      "  cadre bench --device cuda --op gmm_nt,host --shape decode --repeats 21\n"
      "  cadre bench --device cuda --op gmm_nt --kernel sm90/gmm_128x256\n\n"
      "Dense cuBLAS is opened at run time; CADRE_CUBLAS names a library that the loader doesn't\n"
      "find. Without it shares of dense are missing. A result that fails its check ends in 1.");
  command->callback([options, exit_code] {
    std::string line = "cadre bench --device " + options->bench.device;
    for (const std::string& op : options->bench.ops) line += " --op " + op;
    for (const std::string& shape : options->bench.shapes) line += " --shape " + shape;
    if (!options->bench.dtype.empty()) line += " --dtype " + options->bench.dtype;
    if (options->bench.repeats > 0) line += text(" --repeats ", options->bench.repeats);
    for (const int64_t rows : options->bench.rows) line += text(" --rows ", rows);
    for (const int threads : options->bench.threads) line += text(" --threads ", threads);
    if (options->bench.seconds > 0) line += text(" --seconds ", options->bench.seconds);
    if (options->bench.small_pages) line += " --small-pages";
    if (!options->bench.kernel.empty()) line += " --kernel " + options->bench.kernel;
    *exit_code = run(options->bench, options->json_path, line);
  });
}

}  // namespace cadre::cli
