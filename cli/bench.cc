// cadre bench: options, the choice of the device's implementation, the result file.
#include "bench.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "bench/cpu/rivals.h"
#include "bench/cpu/rounds.h"
#include "cadre/version.h"
#include "command.h"
#include "core/environment.h"
#include "core/text.h"
#include "machine.h"
#include "result_file.h"
#include "trace_file.h"

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
            {"threads", cpu.threads},
            {"features", cpu.features}};
  }
  nlohmann::json devices = nlohmann::json::array();
  for (const CudaDeviceInfo& info : cuda_devices()) {
    devices.push_back({{"name", info.name}, {"sm_count", info.sm_count}});
  }
  return {{"devices", devices}};
}

nlohmann::json rivals_in_this_build() {
  nlohmann::json rivals = nlohmann::json::object();
  for (const auto& rival : bench::make_rivals()) rivals[rival->name()] = rival->version();
  return rivals;
}

/// The files that are written beside the table; an empty name: none.
struct BenchFiles {
  std::string json;
  std::string trace;
};

int run(BenchOptions options, const BenchFiles& files, const CLI::App& command) {
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
                         options.small_pages || options.quick;
  if (cpu_alone && options.device != "cpu") {
    return report(
        "bench", Status::invalid(
                     text("--rows, --threads, --seconds, --quick or --small-pages, but --device = ",
                          options.device, ", expected cpu")));
  }
  if (!options.rows.empty() && !options.shapes.empty()) {
    return report("bench", Status::invalid("--rows and --shape, expected one of them: a shape has "
                                           "its own rows"));
  }
  if ((!options.skews.empty() || !options.conditions.empty()) && options.device != "cuda") {
    return report("bench", Status::invalid(text("--skew or --condition, but --device = ",
                                                options.device, ", expected cuda")));
  }
  // Seen before the measuring, so that a wrong path costs no minutes; written after it, so that a
  // run that ends early leaves the older file as it was.
  for (const auto& [path, option] : {std::pair{files.json, "--json"}, {files.trace, "--trace"}}) {
    if (path.empty()) continue;
    if (Status status = check_replaceable(path, option); !status.ok()) {
      return report("bench", status);
    }
  }
  bench::Trace trace;
  if (!files.trace.empty()) options.trace = &trace;
  nlohmann::json results;
  bool checks_passed = true;
  if (Status status = found->run(options, &results, &checks_passed); !status.ok()) {
    return report("bench", status);
  }
  const nlohmann::json environment = measured_environment();
  const std::string repeat = command_to_repeat(environment, options.device, command);
  if (!files.json.empty()) {
    nlohmann::json document = {{"schema", 2},
                               {"cadre", version()},
                               {"command", repeat},
                               {"environment", environment},
                               {"device", options.device},
                               {"machine", machine_of(options.device)},
                               {"checks_passed", checks_passed},
                               {"results", std::move(results)}};
    if (options.device == "cpu") document["rivals"] = rivals_in_this_build();
    if (Status status = replace_file(files.json, result_text(document)); !status.ok()) {
      return report("bench", status);
    }
    fmt::print("wrote {}\n", files.json);
  }
  if (!files.trace.empty()) {
    if (Status status = replace_file(files.trace, trace_text(trace, repeat), "--trace");
        !status.ok()) {
      return report("bench", status);
    }
    fmt::print("wrote {}\n", files.trace);
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
    BenchFiles files;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "bench", "Measure speed on this machine; every result is checked before it is timed");
  command->add_option("--device", options->bench.device, "Where to measure")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command
      ->add_option(
          "--op", options->bench.ops,
          "Only these: gmm, gmm_nt (rhs stored [n, k]), tgmm (of i8 with --dtype i8 alone), layer "
          "(route and MoeMlp: forward, and a training step); with --device cuda also options (of "
          "the epilogue), portable (kernels), host (cost of a call)")
      ->delimiter(',');
  command
      ->add_option(
          "--shape", options->bench.shapes,
          "Only shapes of these names or tags (train, decode) of bench/shapes, each with a "
          "balanced and a Zipf router and, on the cpu, 90 % of the rows in one expert; a layer's "
          "name (qwen3-30b) is both of its products and the layer")
      ->delimiter(',');
  command
      ->add_option("--dtype", options->bench.dtypes,
                   "Only these element types of the operands; default: f32, bf16, i8 and e4m3, on "
                   "cuda bf16, f16 and e4m3. e4m3 is measured in gmm_nt, with a scale for each row "
                   "and for each block of 128")
      ->delimiter(',');
  command
      ->add_option(
          "--repeats", options->bench.repeats,
          "Timed runs of each case, on a cpu at most, on cuda of the mixed condition; default: "
          "200, on cuda 15")
      ->check(whole_number(1, 1000000));
  command
      ->add_option(
          "--rows", options->bench.rows,
          "Only these rows per expert (only with --device cpu, without --shape); default: 1 "
          "to 1024")
      ->delimiter(',')
      ->check(whole_number(1, 1000000));
  command
      ->add_option("--threads", options->bench.threads,
                   "Numbers of threads (only with --device cpu); default: 1 and all")
      ->delimiter(',')
      ->check(whole_number(1, environment::kMaxThreads));
  command
      ->add_option("--seconds", options->bench.seconds,
                   text("Time for the rounds of each case, of which there are at least ",
                        bench::kFewestRounds,
                        " unless --repeats says less (only with --device cpu); default: 1.2"))
      ->check(number(0.001, 3600));
  command->add_flag("--quick", options->bench.quick,
                    "4 and 256 rows per expert in a few rounds each, within two minutes (only with "
                    "--device cpu); default: 1 to 1024 rows, ten minutes and more");
  command->add_flag("--small-pages", options->bench.small_pages,
                    "Operands in whatever pages the system gives (only with --device cpu); "
                    "default: huge pages are asked for, for everything that is compared");
  command
      ->add_option("--skew", options->bench.skews,
                   "Only this routing: 0 balanced, 1 Zipf (only with --device cuda)")
      ->delimiter(',')
      ->check(whole_number(0, 1));
  command
      ->add_option(
          "--condition", options->bench.conditions,
          "Only these (only with --device cuda): sustained (a loop of its own, what training "
          "sees), rested (the first calls after a second of rest), mixed (in turn with "
          "others, shuffled); rested and mixed calls find an empty L2")
      ->delimiter(',');
  command->add_option("--kernel", options->bench.kernel,
                      "Pin a kernel that cadre explain names (only with --device cuda)");
  const CLI::Validator named(
      [](const std::string& path) -> std::string {
        return path.empty() ? "expected the name of a file, got \"\"" : "";
      },
      "");
  command
      ->add_option("--json", options->files.json,
                   "Write the results to this file; an older one stays until the run is complete")
      ->type_name("FILE")
      ->check(named);
  command
      ->add_option("--trace", options->files.trace,
                   "Write what was timed when to this file, for ui.perfetto.dev")
      ->type_name("FILE")
      ->check(named);
  command->footer(
      "Examples:\n"
      "  cadre bench --device cpu --quick\n"
      "  cadre bench --device cpu\n"
      "  cadre bench --device cpu --op gmm,tgmm --dtype bf16,f32 --json results.json\n"
      "  cadre bench --device cpu --op layer --shape qwen3-30b,mixtral-8x7b --dtype bf16\n"
      "  cadre bench --device cpu --rows 64,256 --threads 1 --seconds 3 --trace trace.json\n"
      "  cadre bench --device cuda --json results.json\n"
      "  cadre bench --device cuda --op gmm_nt,host --shape decode --repeats 21\n"
      "  cadre bench --device cuda --op gmm_nt,tgmm --condition sustained --skew 0\n"
      "  cadre bench --device cuda --op gmm_nt --kernel sm90/gmm_256x128\n"
      "  cadre bench --device cuda --op layer --dtype bf16\n\n"
      "On a terminal the case that is being measured and the time left stand below the table;\n"
      "piped, there are the rows alone. NO_COLOR=1 leaves out colours.\n"
      "Dense cuBLAS is opened at run time; CADRE_CUBLAS names a library that the loader doesn't\n"
      "find. Without it shares of dense are missing. A result that fails its check ends in 1.");
  command->callback([options, command, exit_code] {
    *exit_code = run(options->bench, options->files, *command);
  });
}

}  // namespace cadre::cli
