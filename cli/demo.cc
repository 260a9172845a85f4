// cadre demo: a mixture-of-experts layer, forward and backward, on the best backend here.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "backend/registry.h"
#include "command.h"
#include "core/text.h"
#include "machine.h"
#include "moe_layer.h"
#include "ops/problem_of.h"
#include "plain_loop.h"
#include "sampled_check.h"
#include "terminal.h"

namespace cadre::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// From a layer that plain loops manage to one of a real model (hidden 2048, intermediate 768,
/// top-8).
const shapes::LayerShape kShapes[] = {{"tiny", 96, 2, 128, 192, 8},
                                      {"small", 256, 2, 256, 384, 8},
                                      {"medium", 512, 4, 1024, 768, 16},
                                      {"large", 1024, 8, 2048, 768, 32},
                                      {"full", 4096, 8, 2048, 768, 128}};

/// Seconds of products that a demo may take; each is run at least twice.
constexpr double kBudgetSeconds = 12;
/// Timed runs of one op stop after this long.
constexpr double kSecondsPerOp = 0.25;
constexpr int kMaxRuns = 20;

struct DemoOptions {
  std::string size = "auto";
  std::string dtype = "bf16";
  std::string backend;
  bool json = false;
};

struct StepResult {
  std::string name;
  std::string op;
  std::string kernel;
  int runs = 0;
  double seconds = 0;
  double gflops = 0;
  double plain_loop_seconds = 0;
  CheckResult check;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct RunOp {
  Context& context;
  Status operator()(const GmmArgs& args) const { return gmm(context, args); }
  Status operator()(const TgmmArgs& args) const { return tgmm(context, args); }
  Status operator()(const BiasGradArgs& args) const { return bias_grad(context, args); }
};

/// Runs once and waits for the device.
Status run_and_wait(Context& context, const OpArgs& args, Device device) {
  if (Status status = std::visit(RunOp{context}, args); !status.ok()) return status;
  return device.kind == DeviceKind::kCuda ? cuda_synchronize() : Status{};
}

/// The name of the kernel that the args get.
Status kernel_of(const Context& context, const OpArgs& args, StepResult* result) {
  plan::Problem problem;
  Status status =
      std::visit([&](const auto& typed) { return ops::problem_of(typed, &problem); }, args);
  if (!status.ok()) return status;
  backend::Selection selection;
  status = backend::Registry::instance().select(context.state(), problem, nullptr, &selection);
  if (!status.ok()) return status;
  result->op = plan::name_of(problem.op);
  result->kernel = selection.config.kernel;
  return {};
}

/// GFLOP/s of a small product, to choose a layer that takes seconds and not minutes.
Status probe_speed(Context& context, DType dtype, double* gflops) {
  *gflops = 0;
  for (int64_t size = 64; size <= 1024; size *= 2) {
    OwnedTensor lhs, rhs, out;
    for (const Status& status :
         {lhs.make(dtype, {size, size}, {}), rhs.make(dtype, {1, size, size}, {}),
          out.make(dtype, {size, size}, {})}) {
      if (!status.ok()) return status;
    }
    lhs.fill_random(1, 1);
    rhs.fill_random(2, 1);
    const auto rows = static_cast<int32_t>(size);
    const GmmArgs args{.lhs = lhs.view(Side::kHost),
                       .rhs = rhs.view(Side::kHost),
                       .group_sizes = {&rows, DType::kI32, 1},
                       .out = out.view(Side::kHost)};
    const auto start = Clock::now();
    if (Status status = gmm(context, args); !status.ok()) return status;
    const double seconds = std::max(seconds_since(start), 1e-9);
    const auto edge = static_cast<double>(size);
    *gflops = std::max(*gflops, 2 * edge * edge * edge / seconds * 1e-9);
    if (seconds > 0.02) return {};
  }
  return {};
}

Status choose_shape(const DemoOptions& options, Context& context, DType dtype, Device device,
                    shapes::LayerShape* shape) {
  if (options.size != "auto") {
    *shape = *std::find_if(std::begin(kShapes), std::end(kShapes),
                           [&](const shapes::LayerShape& s) { return s.name == options.size; });
    return {};
  }
  if (device.kind == DeviceKind::kCuda) {
    *shape = *std::rbegin(kShapes);
    return {};
  }
  double gflops = 0;
  if (Status status = probe_speed(context, dtype, &gflops); !status.ok()) return status;
  // The largest weighs gigabytes: on a CPU it must be asked for by name.
  *shape = kShapes[0];
  for (const shapes::LayerShape& candidate : kShapes) {
    const bool fits = 2 * candidate.step_operations() * 1e-9 / gflops <= kBudgetSeconds;
    if (fits && candidate.name != "full") *shape = candidate;
  }
  return {};
}

Status check_against_reference(Context& reference, const LayerStep& step, const TgmmCheck* tgmm,
                               CheckResult* result) {
  if (tgmm != nullptr) return tgmm->check(reference, result);
  if (const auto* args = std::get_if<GmmArgs>(&step.host)) {
    return check_gmm(reference, *args, result);
  }
  return check_bias_grad(reference, std::get<BiasGradArgs>(step.host), result);
}

/// Runs once, checks, then times.
Status run_step(Context& context, Context& reference, const LayerStep& step, Device device,
                Progress& progress, StepResult* result) {
  result->name = step.name;
  if (Status status = kernel_of(context, step.device, result); !status.ok()) return status;
  progress.show(fmt::format("{}: running", step.name));
  std::unique_ptr<TgmmCheck> tgmm;
  if (const auto* args = std::get_if<TgmmArgs>(&step.host)) {
    tgmm = std::make_unique<TgmmCheck>(*args);
  }
  for (const Status& status :
       {run_and_wait(context, step.device, device), context.check(device), step.out->download()}) {
    if (!status.ok()) return status;
  }
  progress.show(fmt::format("{}: comparing with the reference", step.name));
  Status status = check_against_reference(reference, step, tgmm.get(), &result->check);
  if (!status.ok()) return status;

  progress.show(fmt::format("{}: timing", step.name));
  std::vector<double> times;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    if (status = run_and_wait(context, step.device, device); !status.ok()) return status;
    times.push_back(seconds_since(start));
  } while (static_cast<int>(times.size()) < kMaxRuns && seconds_since(begin) < kSecondsPerOp);
  std::sort(times.begin(), times.end());
  result->runs = static_cast<int>(times.size());
  result->seconds = times[times.size() / 2];
  result->gflops = step.flops / result->seconds * 1e-9;
  progress.show(fmt::format("{}: timing a plain loop", step.name));
  result->plain_loop_seconds = plain_loop_seconds(step.host);
  progress.clear();
  return step.then ? step.then() : Status{};
}

nlohmann::json json_of(const StepResult& result) {
  return {{"name", result.name},
          {"op", result.op},
          {"kernel", result.kernel},
          {"runs", result.runs},
          {"seconds", result.seconds},
          {"gflops", result.gflops},
          {"plain_loop_seconds", result.plain_loop_seconds},
          {"elements_checked", result.check.elements},
          {"max_error", result.check.error},
          {"tolerance", result.check.tolerance},
          {"error_over_tolerance", result.check.ratio},
          {"worst_at", result.check.where},
          {"passed", result.check.passed()}};
}

struct Demo {
  shapes::LayerShape shape{};
  DType dtype = DType::kInvalid;
  Device device{};
  const MoeLayer* layer = nullptr;
  std::vector<StepResult> results{};

  bool passed() const {
    return std::all_of(results.begin(), results.end(),
                       [](const StepResult& result) { return result.check.passed(); });
  }
};

void print_header(const Demo& demo) {
  const shapes::LayerShape& s = demo.shape;
  fmt::print("A mixture-of-experts layer, forward and backward, {} on {}\n", name_of(demo.dtype),
             demo.device.kind == DeviceKind::kCuda ? cuda_devices().at(0).name : cpu_info().model);
  fmt::print("{} tokens, top {} of {} experts, hidden {}, intermediate {} (size {})\n", s.tokens,
             s.top_k, s.experts, s.hidden, s.intermediate, s.name);
  fmt::print("{} rows sorted by expert ({} to {} rows each), {} tail rows that hold NaN\n",
             s.rows(), demo.layer->smallest_group(), demo.layer->largest_group(),
             demo.layer->tail_rows());
  fmt::print(
      "Each expert has two weights: w13 [{}, {}], the gate and the up projection in one, and\n"
      "w2 [{}, {}], the down projection. dgrad: gradient of the input, wgrad: of the weights.\n\n",
      2 * s.intermediate, s.hidden, s.hidden, s.intermediate);
}

void print_summary(const Demo& demo) {
  double seconds = 0, plain_loop_seconds = 0;
  int64_t elements = 0;
  for (const StepResult& result : demo.results) {
    seconds += result.seconds;
    plain_loop_seconds += result.plain_loop_seconds;
    elements += result.check.elements;
    if (result.check.passed()) continue;
    fmt::print("{} differs at {}: error {:.3g}, tolerance {:.3g}\n", result.name,
               result.check.where, result.check.error, result.check.tolerance);
  }
  fmt::print("\n{} {} results against the reference, {} elements sampled\n", verdict(demo.passed()),
             demo.results.size(), elements);
  fmt::print(
      "One pass takes {}; plain loops on one core take {}, {:.3g} times as long (timed on some "
      "rows of each product)\n",
      format_seconds(seconds), format_seconds(plain_loop_seconds), plain_loop_seconds / seconds);
}

Status run_steps(Context& context, MoeLayer& layer, bool json, Demo* demo) {
  Context reference(ContextOptions{.backend = "reference"});
  if (!reference.status().ok()) return reference.status();
  Progress progress;
  const Table table({{"step", 14},
                     {"op", 9},
                     {"kernel", 16},
                     {"time", 10, true},
                     {"speed", 16, true},
                     {"plain loop", 10, true},
                     {"error/tolerance", 15, true},
                     {"check", 5}},
                    json);
  for (const LayerStep& step : layer.steps()) {
    StepResult result;
    Status status = run_step(context, reference, step, demo->device, progress, &result);
    if (!status.ok()) return status;
    table.row({result.name, result.op, result.kernel, format_seconds(result.seconds),
               format_flops(result.gflops * 1e9), format_seconds(result.plain_loop_seconds),
               fmt::format("{:.3f}", result.check.ratio), verdict(result.check.passed())});
    demo->results.push_back(std::move(result));
  }
  return {};
}

int run(const DemoOptions& options) {
  Context context(ContextOptions{.backend = options.backend});
  if (!context.status().ok()) return report("demo", context.status());
  Demo demo;
  demo.dtype = dtype_from_name(options.dtype);
  // CUDA where there is a device, unless another backend is asked for.
  const std::string& backend = context.state().backend;
  const bool cuda =
      backend::Registry::instance().find("cuda") != nullptr && !cuda_devices().empty();
  if (backend == "cuda" && !cuda) {
    return report("demo", Status::unsupported("backend = cuda, but there is no CUDA device here"));
  }
  if (cuda && (backend.empty() || backend == "cuda")) demo.device.kind = DeviceKind::kCuda;

  MoeLayer layer;
  {
    Progress progress;
    progress.show("choosing a size");
    Status status = choose_shape(options, context, demo.dtype, demo.device, &demo.shape);
    if (!status.ok()) return report("demo", status);
    progress.show("filling the layer with random data");
    if (status = layer.make(demo.shape, demo.dtype, demo.device); !status.ok()) {
      return report("demo", status);
    }
    progress.show("routing the tokens");
    if (status = layer.route(context); !status.ok()) return report("demo", status);
  }
  demo.layer = &layer;
  if (!options.json) print_header(demo);
  if (Status status = run_steps(context, layer, options.json, &demo); !status.ok()) {
    return report("demo", status);
  }
  if (!options.json) {
    print_summary(demo);
    return demo.passed() ? kOk : kCheckFailed;
  }
  nlohmann::json steps = nlohmann::json::array();
  for (const StepResult& result : demo.results) steps.push_back(json_of(result));
  print_json({{"device", demo.device.kind == DeviceKind::kCuda ? "cuda" : "cpu"},
              {"dtype", name_of(demo.dtype)},
              {"shape",
               {{"name", demo.shape.name},
                {"tokens", demo.shape.tokens},
                {"top_k", demo.shape.top_k},
                {"hidden", demo.shape.hidden},
                {"intermediate", demo.shape.intermediate},
                {"experts", demo.shape.experts},
                {"tail_rows", layer.tail_rows()}}},
              {"steps", steps},
              {"passed", demo.passed()}});
  return demo.passed() ? kOk : kCheckFailed;
}

}  // namespace

void add_demo(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* command = app.add_subcommand(
      "demo", "Run a mixture-of-experts layer forward and backward, check and time every product");
  command->add_option("--size", options->size, "Size of the layer; auto: by this machine's speed")
      ->check(CLI::IsMember({"auto", "tiny", "small", "medium", "large", "full"}))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Type of activations and weights")
      ->check(CLI::IsMember({"bf16", "f16", "f32", "f64"}))
      ->capture_default_str();
  command->add_option("--backend", options->backend, "Use this backend alone (see cadre info)");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(
      "Sampled elements of every result are compared with the reference backend; exit code 1 when\n"
      "one differs by more than its tolerance. The products are timed, and beside each the loops\n"
      "that one would write first, on one core; router, sorting and SwiGLU are not.\n"
      "Examples:\n  cadre demo\n  cadre demo --dtype f32 --size tiny --json");
  command->callback([options, exit_code] { *exit_code = run(*options); });
}

}  // namespace cadre::cli
