// Operands, the check on the host, and the times of layers and FP8 products.
#include "bench_cuda_whole.h"

#include <nlohmann/json.hpp>

#include "cadre/gmm.h"
#include "core/text.h"
#include "expert_layer.h"
#include "fast_kernel.h"
#include "machine.h"
#include "ops/problem_of.h"
#include "owned_scales.h"
#include "owned_tensor.h"
#include "sampled_check.h"

namespace cadre::cli {
namespace {

using nlohmann::json;

constexpr Device kDevice{DeviceKind::kCuda, 0};

json time_fields(const bench::Timing& timing, double operations, const CheckResult& check) {
  json fields = {{"condition", name_of(timing.condition)},
                 {"flush", timing.condition == bench::Condition::kSustained ? "none" : "write"},
                 {"repeats", timing.calls},
                 {"median_s", timing.times.median_s},
                 {"least_s", timing.times.least_s},
                 {"greatest_s", timing.times.greatest_s},
                 {"gflops", operations / timing.times.median_s * 1e-9},
                 {"max_error", check.error},
                 {"error_over_tolerance", check.ratio},
                 {"elements_checked", check.elements},
                 {"checked", check.passed()}};
  if (timing.dense) {
    fields["of_dense"] = timing.dense->median_s / timing.times.median_s;
    fields["dense_median_s"] = timing.dense->median_s;
  }
  return fields;
}

/// The case's row, once for each condition.
Status time_rows(bench::CudaRunner& runner, const bench::TimedCall& timed, double operations,
                 const CheckResult& check, const json& row, json* rows) {
  std::vector<bench::Timing> timings;
  if (Status status = runner.time_call(timed, &timings); !status.ok()) return status;
  for (const bench::Timing& timing : timings) {
    json complete = row;
    complete.update(time_fields(timing, operations, check));
    rows->push_back(std::move(complete));
  }
  return {};
}

}  // namespace

Status measure_layer(bench::CudaRunner& runner, const bench::LayerCase& work, int repeats,
                     json* rows) {
  const shapes::LayerShape& shape = work.shape;
  Context context(ContextOptions{.backend = "cuda"});
  ExpertLayer layer;
  CheckResult check;
  Status status =
      layer.make(shape, work.dtype, kDevice, work.backward, Pages::kAny, runner.stream());
  if (status.ok()) status = layer.prepare(context);
  if (status.ok()) status = layer.check(context, &check);
  if (!status.ok()) return status;
  bench::TimedCall timed{.call = [&] { status = layer.run(context); },
                         .dtype = work.dtype,
                         .conditions = work.conditions,
                         .repeats = repeats};
  if (!work.backward) {
    timed.dense = {{shape.rows(), 2 * shape.intermediate, shape.hidden},
                   {shape.rows(), shape.hidden, shape.intermediate}};
  }
  const json row = {{"op", "layer"},
                    {"case", work.backward ? "layer training step" : "layer forward"},
                    {"shape", shape.name},
                    {"skew", 0.0},
                    {"dtype", name_of(work.dtype)},
                    {"out_dtype", name_of(work.dtype)},
                    {"m", shape.rows()},
                    {"tokens", shape.tokens},
                    {"hidden", shape.hidden},
                    {"intermediate", shape.intermediate},
                    {"num_groups", shape.experts},
                    {"kernel", "layer"}};
  const Status timed_status =
      time_rows(runner, timed, work.backward ? shape.step_operations() : shape.forward_operations(),
                check, row, rows);
  return status.ok() ? timed_status : status;
}

Status measure_scaled(bench::CudaRunner& runner, const bench::ScaledCase& work, int repeats,
                      json* rows) {
  const shapes::Shape& shape = work.shape;
  const int64_t m = shape.m(), k = shape.k, n = shape.n, g = shape.num_groups;
  const std::vector<int64_t> rows_of_group = shapes::router_group_sizes(g, m, work.skew, 1);
  const json row = {
      {"op", "gmm_nt"},
      {"case", text(shape.tag == "decode" ? "decode " : "", "forward ", name_of(work.scales))},
      {"shape", shape.name},
      {"skew", work.skew},
      {"dtype", "e4m3"},
      {"out_dtype", "bf16"},
      {"scales", name_of(work.scales)},
      {"m", m},
      {"k", k},
      {"n", n},
      {"num_groups", g}};
  Context context(ContextOptions{.backend = "cuda"});
  OwnedTensor lhs, rhs, out, sizes;
  OwnedScales lhs_scales, rhs_scales;
  for (const auto& make :
       {std::function<Status()>([&] {
          return lhs.make(DType::kE4M3, {m, k}, kDevice);
        }),
        std::function<Status()>([&] {
          return rhs.make(DType::kE4M3, {g, n, k}, kDevice);
        }),
        std::function<Status()>([&] {
          return out.make(DType::kBF16, {m, n}, kDevice);
        }),
        std::function<Status()>([&] { return sizes.make(DType::kI32, {g}, kDevice); }),
        std::function<Status()>([&] { return lhs_scales.make_rows(work.scales, m, k, kDevice); }),
        std::function<Status()>(
            [&] { return rhs_scales.make_weights(work.scales, g, n, k, kDevice); })}) {
    if (Status status = make(); !status.ok()) return status;
  }
  const auto args_of = [&](Side side) {
    const TensorView groups = sizes.view(side);
    GmmArgs args{.lhs = ScaledTensor(lhs.view(side), lhs_scales.view(side)),
                 .rhs = ScaledGroups(rhs.view(side), rhs_scales.view(side)),
                 .group_sizes = {groups.data, groups.dtype, g, groups.device},
                 .out = out.view(side),
                 .transpose_rhs = true};
    args.options.stream = runner.stream();
    return args;
  };
  const GmmArgs args = args_of(Side::kDevice);
  plan::Problem problem;
  FastKernel found;
  Status status = ops::problem_of(args, &problem);
  if (status.ok()) status = find_fast_kernel(context, problem, &found);
  if (!status.ok()) return status;
  if (!found.refused.empty()) {
    json refused = row;
    refused["refused"] = found.refused;
    rows->push_back(std::move(refused));
    return {};
  }
  for (int64_t i = 0; i < g; ++i) {
    sizes.set(i, static_cast<double>(rows_of_group[static_cast<size_t>(i)]));
  }
  lhs.fill_random(1, 1.0);
  rhs.fill_random(2, 1.0);
  out.fill_nan();
  for (OwnedTensor* tensor : {&lhs, &rhs, &out, &sizes}) {
    if (status.ok()) status = tensor->upload();
  }
  if (status.ok()) status = cuda_synchronize();
  if (status.ok()) status = gmm(context, args);
  if (status.ok()) status = cuda_synchronize();
  if (status.ok()) status = out.download();
  Context reference(ContextOptions{.backend = "reference"});
  CheckResult check;
  if (status.ok()) status = check_gmm(reference, args_of(Side::kHost), &check);
  if (!status.ok()) return status;
  json complete = row;
  complete["kernel"] = found.kernel;
  const double operations =
      2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
  const bench::TimedCall timed{.call = [&] { status = gmm(context, args); },
                               .conditions = work.conditions,
                               .repeats = repeats};
  const Status timed_status = time_rows(runner, timed, operations, check, complete, rows);
  return status.ok() ? timed_status : status;
}

}  // namespace cadre::cli
