// Operands, the check of the result, and the calls that are timed in turn.
#include "bench_cpu_measure.h"

#include <functional>
#include <string>
#include <vector>

#include "bench/cpu/rivals.h"
#include "bench/cpu/rounds.h"
#include "cadre/gmm.h"
#include "cadre/tgmm.h"
#include "expert_layer.h"
#include "fast_kernel.h"
#include "ops/problem_of.h"
#include "owned_scales.h"
#include "owned_tensor.h"

namespace cadre::cli {
namespace {

void fill(OwnedTensor* tensor, uint64_t seed) {
  if (tensor->dtype() != DType::kI8) return tensor->fill_random(seed, 1.0);
  auto* bytes = static_cast<int8_t*>(tensor->view(Side::kHost).data);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (int64_t i = 0; i < tensor->size(); ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    bytes[i] = static_cast<int8_t>(state >> 32);
  }
}

/// The kernel that the library chooses, or why it has none but the reference.
template <typename Args>
Status choose(const Context& context, const Args& args, CpuMeasured* measured) {
  plan::Problem problem;
  FastKernel found;
  Status status = ops::problem_of(args, &problem);
  if (status.ok()) status = find_fast_kernel(context, problem, &found);
  measured->kernel = found.kernel;
  measured->refused = found.refused;
  return status;
}

using Runs = std::vector<std::function<void()>>;

void time_runs(const CpuCase& work, const Runs& runs, const std::vector<std::string>& rivals,
               const BenchOptions& options, CpuMeasured* measured) {
  bench::RoundOptions rounds{.repeats = options.repeats, .seconds = options.seconds};
  if (options.trace != nullptr) {
    rounds.told = [&](size_t run, bench::Trace::Clock::time_point start, double seconds) {
      options.trace->add(run == 0 ? "cadre" : rivals[run - 1], work.name(), start, seconds);
    };
  }
  const std::vector<std::vector<double>> times = bench::time_in_rounds(runs, rounds);
  measured->median_s = bench::median(times[0]);
  measured->rounds = times[0].size();
  for (size_t i = 0; i < rivals.size(); ++i) {
    const bench::Interval ratio = bench::ratio_of_rounds(times[i + 1], times[0]);
    measured->rivals[rivals[i]] = {{"median_s", bench::median(times[i + 1])},
                                   {"times_ours", ratio.median},
                                   {"times_ours_low", ratio.low},
                                   {"times_ours_high", ratio.high}};
  }
}

Status measure_layer(const CpuCase& work, const BenchOptions& options, CpuMeasured* measured) {
  Context context({.num_threads = work.threads});
  ExpertLayer layer;
  const Pages pages = options.small_pages ? Pages::kAny : Pages::kHuge;
  Status status = layer.make(*work.layer, work.dtype, Device{}, work.backward, pages);
  if (status.ok()) status = layer.prepare(context);
  if (status.ok()) status = layer.check(context, &measured->check);
  if (!status.ok()) return status;
  time_runs(work, {[&] { status = layer.run(context); }}, {}, options, measured);
  return status;
}

}  // namespace

Status measure(const CpuCase& work, const BenchOptions& options, CpuMeasured* measured) {
  if (work.layer) return measure_layer(work, options, measured);
  const auto groups = static_cast<int64_t>(work.group_sizes.size());
  const bool transpose_rhs = work.op == "gmm_nt";
  OwnedTensor lhs, rhs, out;
  const Device cpu{};
  const Pages pages = options.small_pages ? Pages::kAny : Pages::kHuge;
  Status status = lhs.make(work.dtype, {work.m(), work.k}, cpu, pages);
  if (status.ok()) {
    status = work.tgmm()     ? rhs.make(work.dtype, {work.m(), work.n}, cpu, pages)
             : transpose_rhs ? rhs.make(work.dtype, {groups, work.n, work.k}, cpu, pages)
                             : rhs.make(work.dtype, {groups, work.k, work.n}, cpu, pages);
  }
  if (status.ok()) {
    status = work.tgmm() ? out.make(work.out_dtype(), {groups, work.k, work.n}, cpu, pages)
                         : out.make(work.out_dtype(), {work.m(), work.n}, cpu, pages);
  }
  OwnedScales lhs_scales, rhs_scales;
  if (status.ok()) status = lhs_scales.make_rows(work.scales, work.m(), work.k, cpu);
  if (status.ok()) status = rhs_scales.make_weights(work.scales, groups, work.n, work.k, cpu);
  if (!status.ok()) return status;

  Context context({.num_threads = work.threads});
  Context reference({.backend = "reference"});
  const GroupSizes sizes(work.group_sizes.data(), DType::kI64, groups);
  GmmArgs gmm_args{.lhs = ScaledTensor(lhs.view(Side::kHost), lhs_scales.view(Side::kHost)),
                   .rhs = ScaledGroups(rhs.view(Side::kHost), rhs_scales.view(Side::kHost)),
                   .group_sizes = sizes,
                   .out = out.view(Side::kHost),
                   .transpose_rhs = transpose_rhs};
  TgmmArgs tgmm_args{};
  tgmm_args.lhs = lhs.view(Side::kHost);
  tgmm_args.rhs = rhs.view(Side::kHost);
  tgmm_args.group_sizes = sizes;
  tgmm_args.out = out.view(Side::kHost);

  status = work.tgmm() ? choose(context, tgmm_args, measured) : choose(context, gmm_args, measured);
  if (!status.ok() || !measured->refused.empty()) return status;
  fill(&lhs, 1);
  fill(&rhs, 2);
  out.fill_nan();

  // The result first, then the time.
  if (work.tgmm()) {
    const TgmmCheck check(tgmm_args);
    if (status = tgmm(context, tgmm_args); !status.ok()) return status;
    if (status = check.check(reference, &measured->check); !status.ok()) return status;
  } else {
    if (status = gmm(context, gmm_args); !status.ok()) return status;
    if (status = check_gmm(reference, gmm_args, &measured->check); !status.ok()) return status;
  }

  Runs runs;
  runs.emplace_back(
      [&] { status = work.tgmm() ? tgmm(context, tgmm_args) : gmm(context, gmm_args); });
  std::vector<std::string> names;
  auto rivals = bench::make_rivals();
  for (const auto& rival : rivals) {
    if (work.scales != ScaleMode::kNone) continue;  // neither multiplies scaled operands
    const bool takes_it = rival->prepare({.transposed_lhs = work.tgmm(),
                                          .transpose_rhs = transpose_rhs,
                                          .dtype = work.dtype,
                                          .out_dtype = work.out_dtype(),
                                          .group_sizes = work.group_sizes,
                                          .k = work.k,
                                          .n = work.n,
                                          .lhs = gmm_args.lhs.data,
                                          .rhs = rhs.view(Side::kHost).data,
                                          .out = out.view(Side::kHost).data,
                                          .threads = work.threads});
    if (!takes_it) continue;
    names.push_back(rival->name());
    runs.emplace_back([&rival] { rival->run(); });
  }
  time_runs(work, runs, names, options, measured);
  return status;
}

}  // namespace cadre::cli
