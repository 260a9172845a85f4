// cadre verify: random calls of every op against the exact result. The engine is in verify/.
#include "verify/differential.h"

#include <fmt/core.h>

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "backend/registry.h"
#include "command.h"
#include "machine.h"
#include "terminal.h"

namespace cadre::cli {
namespace {

struct VerifyOptions {
  int64_t cases = 2000;
  uint64_t seed = 1;
  int64_t max_failures = 5;
  std::string backend;
  std::string op = "all";
  bool json = false;
};

/// Memory of the first CUDA device. What it can't do ends the command as an internal error.
class CudaMemory final : public verify::Memory {
 public:
  Device device() const override { return {.kind = DeviceKind::kCuda, .index = 0}; }
  void* allocate(size_t size_bytes) override {
    void* data = nullptr;
    require(cuda_allocate(device(), size_bytes, &data));
    return data;
  }
  void release(void* data) override { cuda_release(device(), data); }
  void upload(void* to, const void* from, size_t size_bytes) override {
    require(cuda_copy_in(to, from, size_bytes));
  }
  void download(void* to, const void* from, size_t size_bytes) override {
    require(cuda_copy_out(to, from, size_bytes));
  }
  Status finish(Context& context) override { return context.check(device()); }

 private:
  static void require(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }
};

std::string_view op_name(verify::Op op) {
  switch (op) {
    case verify::Op::kGmm:
      return "gmm";
    case verify::Op::kTgmm:
      return "tgmm";
    case verify::Op::kGroupedGemm:
      return "grouped_gemm";
    case verify::Op::kBiasGrad:
      return "bias_grad";
  }
  return "unknown";
}

/// One case after the other; with an op given, seeds whose case is of another op are passed over.
verify::DifferentialReport run_cases(const verify::Subject& subject, const VerifyOptions& options) {
  using Clock = std::chrono::steady_clock;
  verify::DifferentialReport report;
  Progress progress;
  auto shown = Clock::now() - std::chrono::hours(1);
  for (uint64_t seed = options.seed; report.cases_run < options.cases; ++seed) {
    if (options.op != "all" && op_name(verify::random_case(seed).op) != options.op) continue;
    verify::DifferentialOptions one;
    one.cases = 1;
    one.seed = seed;
    one.backend = options.backend;
    verify::DifferentialReport result = verify::run_differential(subject, one);
    report.cases_run += result.cases_run;
    for (verify::CaseFailure& failure : result.failures) {
      report.failures.push_back(std::move(failure));
    }
    if (Clock::now() - shown > std::chrono::milliseconds(200)) {
      shown = Clock::now();
      progress.show(fmt::format("{} of {} cases, {} failed", report.cases_run, options.cases,
                                report.failures.size()));
    }
    if (static_cast<int64_t>(report.failures.size()) >= options.max_failures) break;
  }
  return report;
}

nlohmann::json json_of(const VerifyOptions& options, const verify::DifferentialReport& report) {
  nlohmann::json failures = nlohmann::json::array();
  for (const verify::CaseFailure& failure : report.failures) {
    failures.push_back({{"seed", failure.seed},
                        {"case", failure.description},
                        {"failures", failure.failures},
                        {"command", failure.command}});
  }
  return {{"cases", report.cases_run}, {"seed", options.seed}, {"backend", options.backend},
          {"op", options.op},          {"failures", failures}, {"passed", report.passed()}};
}

int run(const VerifyOptions& options) {
  ContextOptions context_options;
  context_options.backend = options.backend;
  Context context(context_options);
  if (!context.status().ok()) return report("verify", context.status());
  CudaMemory cuda_memory;
  const bool cuda = context.state().backend == "cuda";
  if (cuda && cuda_devices().empty()) {
    return report("verify", Status::unsupported("backend = cuda, but there is no device here"));
  }
  verify::Memory& memory = cuda ? cuda_memory : verify::host_memory();
  const verify::DifferentialReport result = run_cases({context, memory}, options);
  if (options.json) {
    print_json(json_of(options, result));
  } else {
    for (const verify::CaseFailure& failure : result.failures) {
      fmt::print("{}", to_string(failure));
    }
    fmt::print("{} {} cases from seed {}, {} failed\n", verdict(result.passed()), result.cases_run,
               options.seed, result.failures.size());
  }
  return result.passed() ? kOk : kCheckFailed;
}

}  // namespace

void add_verify(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command = app.add_subcommand(
      "verify", "Check random calls of every op, option and layout against the exact result");
  command->add_option("--cases", options->cases, "Number of cases")
      ->check(whole_number(1, 1000000000))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Seed of the first case; the next has the next")
      ->check(whole_number(0, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  command->add_option("--backend", options->backend,
                      "Check this backend (default: the one a call would get)");
  command->add_option("--op", options->op, "Only cases of this op")
      ->check(CLI::IsMember({"all", "gmm", "tgmm", "grouped_gemm", "bias_grad"}))
      ->capture_default_str();
  command->add_option("--max-failures", options->max_failures, "Stop after this many failing cases")
      ->check(whole_number(1, 1000000000))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "A failing case prints the command that repeats it alone; exit code 1.\n"
      "Examples:\n"
      "  cadre verify --cases 10000\n"
      "  cadre verify --cases 500 --seed 42 --op tgmm --backend cpu");
  command->callback([options, exit_code] { *exit_code = run(*options); });
}

}  // namespace cadre::cli
