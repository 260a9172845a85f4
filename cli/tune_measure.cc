// Times the candidates of one problem, in turn on a CPU, each sustained on a GPU.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "backend/registry.h"
#include "backend/tuning.h"
#include "bench/cpu/rounds.h"
#include "cadre/gmm.h"
#include "cadre/tgmm.h"
#include "core/text.h"
#include "described_problem.h"
#include "owned_tensor.h"
#include "tune.h"

namespace cadre::cli {
namespace {

constexpr double kSkew = 0;  // a balanced router, whose groups still differ

ProblemDescription describe(const TuneProblem& wanted, Device device) {
  const bool tgmm = wanted.op == "tgmm";
  ProblemDescription described;
  described.op = tgmm ? "tgmm" : "gmm";
  described.m = wanted.shape.m();
  // The gradient of weights [n, k] of a layer.
  described.k = tgmm ? wanted.shape.n : wanted.shape.k;
  described.n = tgmm ? wanted.shape.k : wanted.shape.n;
  described.num_groups = wanted.shape.num_groups;
  described.lhs_dtype = name_of(wanted.dtype);
  described.transpose_rhs = wanted.op == "gmm_nt";
  if (device.kind == DeviceKind::kCuda) {
    described.device = "cuda";
    described.device_sizes = true;
  }
  return described;
}

void fill(OwnedTensor* tensor, uint64_t seed) {
  if (tensor->dtype() != DType::kI8) return tensor->fill_random(seed, 1.0);
  tensor->fill_random(seed, 127.0);
}

bench::Pass pass_of(const std::string& op) {
  return op == "tgmm"     ? bench::Pass::kWgrad
         : op == "gmm_nt" ? bench::Pass::kForward
                          : bench::Pass::kDgrad;
}

}  // namespace

Status Tuner::make(Device device, double seconds_of_candidate, std::unique_ptr<Tuner>* tuner) {
  auto made = std::make_unique<Tuner>();
  made->device_ = device;
  made->seconds_ = seconds_of_candidate;
  // What was measured before must not decide what is measured now. The backend is named, since the
  // benchmark puts one of portable kernels alone in front of the others.
  const bool on_gpu = device.kind == DeviceKind::kCuda;
  made->context_ =
      std::make_unique<Context>(ContextOptions{.backend = on_gpu ? "cuda" : "", .tuned = false});
  if (!made->context_->status().ok()) return made->context_->status();
  if (device.kind == DeviceKind::kCuda) {
    if (Status status = bench::CudaRunner::make(&made->runner_); !status.ok()) return status;
  }
  *tuner = std::move(made);
  return {};
}

Status Tuner::measure(const TuneProblem& wanted, TuneMeasured* measured) {
  plan::Problem problem;
  if (Status status = make_problem(describe(wanted, device_), &problem); !status.ok()) {
    return status;
  }
  backend::Selection selection;
  Status status =
      backend::Registry::instance().select(context_->state(), problem, nullptr, &selection);
  if (status.code() == StatusCode::kUnsupported) {
    measured->left_out = status.message();
    return {};
  }
  if (!status.ok()) return status;
  measured->machine = selection.backend->machine(context_->state(), problem.device);
  measured->key = backend::key_of(problem);
  for (const plan::Config& config :
       backend::tuning_candidates(context_->state(), *selection.backend, problem)) {
    measured->candidates.push_back({std::string(config.kernel), config.threads, 0, true});
  }
  if (measured->machine.empty()) measured->left_out = "only the reference takes it";
  if (measured->candidates.size() < 2) {
    measured->left_out = text("one candidate: ", selection.config.kernel);
  }
  if (!measured->left_out.empty()) return {};
  return device_.kind == DeviceKind::kCuda ? measure_cuda(wanted, measured)
                                           : measure_cpu(wanted, measured);
}

Status Tuner::measure_cpu(const TuneProblem& wanted, TuneMeasured* measured) const {
  const ProblemDescription d = describe(wanted, device_);
  const int64_t g = d.num_groups;
  const bool tgmm_op = d.op == "tgmm";
  const DType out_dtype = wanted.dtype == DType::kI8 ? DType::kI32 : wanted.dtype;
  const double bytes = static_cast<double>(size_of(wanted.dtype)) *
                       (static_cast<double>(d.m) * static_cast<double>(d.k + (tgmm_op ? d.n : 0)) +
                        (tgmm_op ? 0.0 : static_cast<double>(g * d.k) * static_cast<double>(d.n)));
  const double here =
      static_cast<double>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (bytes > here / 2) {
    measured->left_out = text("needs ", static_cast<int64_t>(bytes) >> 20, " MiB");
    return {};
  }
  const std::vector<int64_t> sizes = shapes::router_group_sizes(g, d.m, kSkew, 1);
  const Device cpu{};
  OwnedTensor lhs, rhs, out;
  Status status = lhs.make(wanted.dtype, {d.m, d.k}, cpu, Pages::kHuge);
  if (status.ok()) {
    status = tgmm_op           ? rhs.make(wanted.dtype, {d.m, d.n}, cpu, Pages::kHuge)
             : d.transpose_rhs ? rhs.make(wanted.dtype, {g, d.n, d.k}, cpu, Pages::kHuge)
                               : rhs.make(wanted.dtype, {g, d.k, d.n}, cpu, Pages::kHuge);
  }
  if (status.ok()) {
    status = tgmm_op ? out.make(out_dtype, {g, d.k, d.n}, cpu, Pages::kHuge)
                     : out.make(out_dtype, {d.m, d.n}, cpu, Pages::kHuge);
  }
  if (!status.ok()) return status;
  fill(&lhs, 1);
  fill(&rhs, 2);
  const GroupSizes group_sizes(sizes.data(), DType::kI64, g);
  std::map<int32_t, Context> contexts;
  for (const TuneCandidate& one : measured->candidates) {
    contexts.try_emplace(one.threads, ContextOptions{.num_threads = one.threads, .tuned = false});
  }
  const auto run = [&](const TuneCandidate& one) {
    Context& context = contexts.at(one.threads);
    if (tgmm_op) {
      TgmmArgs args{.lhs = lhs.view(Side::kHost),
                    .rhs = rhs.view(Side::kHost),
                    .group_sizes = group_sizes,
                    .out = out.view(Side::kHost)};
      args.options.config = one.kernel.c_str();
      return tgmm(context, args);
    }
    GmmArgs args{.lhs = lhs.view(Side::kHost),
                 .rhs = rhs.view(Side::kHost),
                 .group_sizes = group_sizes,
                 .out = out.view(Side::kHost),
                 .transpose_rhs = d.transpose_rhs};
    args.options.config = one.kernel.c_str();
    return gmm(context, args);
  };
  const auto* bits = static_cast<const char*>(out.view(Side::kHost).data);
  const size_t size = static_cast<size_t>(out.size()) * size_of(out_dtype);
  std::vector<char> first;
  std::vector<std::function<void()>> calls;
  for (TuneCandidate& one : measured->candidates) {
    out.fill_nan();
    if (status = run(one); !status.ok()) return status;
    if (first.empty()) first.assign(bits, bits + size);
    one.same_bits = std::memcmp(first.data(), bits, size) == 0;
    calls.emplace_back([&status, &run, &one] { status = run(one); });
  }
  const double seconds = seconds_ * static_cast<double>(calls.size());
  const auto times = bench::time_in_rounds(calls, {.repeats = 0, .seconds = seconds});
  for (size_t i = 0; i < times.size(); ++i) {
    measured->candidates[i].seconds = bench::median(times[i]);
  }
  return status;
}

Status Tuner::measure_cuda(const TuneProblem& wanted, TuneMeasured* measured) {
  bench::CaseGroup group{.shape = wanted.shape,
                         .skew = kSkew,
                         .pass = pass_of(wanted.op),
                         .dense = false,
                         .conditions = {bench::Condition::kSustained}};
  for (const TuneCandidate& one : measured->candidates) {
    group.cases.push_back(
        {.name = one.kernel, .dtype = wanted.dtype, .alone = true, .kernel = one.kernel});
  }
  std::vector<bench::Measurement> measurements;
  if (Status status = runner_->measure(group, 1, &measurements); !status.ok()) return status;
  for (size_t i = 0; i < measurements.size(); ++i) {
    TuneCandidate& one = measured->candidates[i];
    one.seconds = measurements[i].timings.front().times.median_s;
    one.same_bits =
        measurements[i].check.passed() && measurements[i].check.bits == measurements[0].check.bits;
  }
  return {};
}

}  // namespace cadre::cli
