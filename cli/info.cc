// cadre info: what this build and this machine have.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "backend/tuning.h"
#include "cadre/version.h"
#include "command.h"
#include "core/environment.h"
#include "machine.h"
#include "terminal.h"

namespace cadre::cli {
namespace {

nlohmann::json collect() {
  const CpuInfo cpu = cpu_info();
  nlohmann::json caches = nlohmann::json::array();
  for (const CpuCache& cache : cpu.caches) {
    caches.push_back(
        {{"level", cache.level}, {"type", cache.type}, {"size_bytes", cache.size_bytes}});
  }
  nlohmann::json devices = nlohmann::json::array();
  for (const CudaDeviceInfo& device : cuda_devices()) {
    devices.push_back(
        {{"index", device.index},
         {"name", device.name},
         {"compute_capability", fmt::format("{}.{}", device.compute_major, device.compute_minor)},
         {"sm_count", device.sm_count},
         {"memory_bytes", device.memory_bytes}});
  }
  nlohmann::json backends = nlohmann::json::array();
  for (const auto& backend : backend::Registry::instance().backends()) {
    backends.push_back({{"name", backend->name()}, {"kernels", backend->kernels()}});
  }
  const Context context;
  nlohmann::json tuning = nlohmann::json::array();
  for (const backend::TuningSource& source : backend::tuning_sources(context.state())) {
    tuning.push_back({{"name", source.name}, {"status", source.status}});
  }
  bool check = false;  // what is wrong with these stands in the context's status
  (void)environment::check_every_call(&check);
  int32_t num_threads = 0;
  (void)environment::num_threads(&num_threads);
  return {{"version", version()},
          {"compiler", __VERSION__},
          {"cpu",
           {{"model", cpu.model},
            {"logical_cpus", cpu.logical_cpus},
            {"threads", cpu.threads},
            {"features", cpu.features},
            {"caches", caches}}},
          {"cuda", {{"built", built_with_cuda()}, {"devices", devices}}},
          {"backends", backends},
          {"tuning", tuning},
          {"environment",
           {{"CADRE_BACKEND", environment::backend()},
            {"CADRE_ISA", environment::isa()},
            {"CADRE_NUM_THREADS", num_threads},
            {"OMP_NUM_THREADS", environment::omp_num_threads()},
            {"CADRE_CHECK", check},
            {"CADRE_TUNE", context.state().tuned ? "" : "off"},
            {"CADRE_TUNE_CACHE", context.state().tune_cache}}},
          {"context", context.status().ok() ? "ok" : context.status().message()}};
}

void print_text(const nlohmann::json& info) {
  const auto& cpu = info["cpu"];
  fmt::print("cadre {} (compiler {})\n\n", info["version"].get<std::string>(),
             info["compiler"].get<std::string>());
  fmt::print("CPU       {}\n", cpu["model"].get<std::string>());
  fmt::print("          {} logical CPUs, {} threads\n", cpu["logical_cpus"].get<int>(),
             cpu["threads"].get<int>());
  fmt::print("          {}\n", fmt::join(cpu["features"].get<std::vector<std::string>>(), " "));
  for (const auto& cache : cpu["caches"]) {
    fmt::print("          L{} {}: {}\n", cache["level"].get<int>(),
               cache["type"].get<std::string>(), format_bytes(cache["size_bytes"].get<double>()));
  }
  const auto& cuda = info["cuda"];
  if (!cuda["built"].get<bool>()) {
    fmt::print("CUDA      not in this build\n");
  } else if (cuda["devices"].empty()) {
    fmt::print("CUDA      in this build; no device here\n");
  }
  for (const auto& device : cuda["devices"]) {
    fmt::print("CUDA      {}: {}, compute capability {}, {} SMs, {}\n", device["index"].get<int>(),
               device["name"].get<std::string>(), device["compute_capability"].get<std::string>(),
               device["sm_count"].get<int>(), format_bytes(device["memory_bytes"].get<double>()));
  }
  fmt::print("\nBackends, in the order they are tried, and their kernels\n");
  for (const auto& backend : info["backends"]) {
    fmt::print("  {:<10}{}\n", backend["name"].get<std::string>(),
               fmt::join(backend["kernels"].get<std::vector<std::string>>(), ", "));
  }
  fmt::print("\nTables of cadre tune\n");
  for (const auto& table : info["tuning"]) {
    fmt::print("  {}: {}\n", table["name"].get<std::string>(), table["status"].get<std::string>());
  }
  if (info["tuning"].empty()) fmt::print("  none\n");
  fmt::print("\nEnvironment\n");
  for (const auto& [name, value] : info["environment"].items()) {
    std::string shown = value.is_string() ? value.get<std::string>() : value.dump();
    if (shown.empty() || shown == "0" || shown == "false") shown = "unset";
    fmt::print("  {:<19}{}\n", name, shown);
  }
}

}  // namespace

void add_info(CLI::App& app, int* exit_code) {
  struct Options {
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "info", "Show the version, this machine's processor and devices, backends and kernels");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer("Examples:\n  cadre info\n  cadre info --json");
  command->callback([options, exit_code] {
    const nlohmann::json info = collect();
    if (options->json) {
      print_json(info);
    } else {
      print_text(info);
    }
    *exit_code = info["context"] == "ok"
                     ? static_cast<int>(kOk)
                     : report("info", Status::invalid(info["context"].get<std::string>()));
  });
}

}  // namespace cadre::cli
