// Measures groups of cases on the GPU.
#include "bench/cuda/runner.h"

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <tuple>

#include "bench/cuda/dense_product.h"
#include "bench/cuda/host_cost.h"
#include "bench/cuda/kernels.h"
#include "bench/cuda/product.h"
#include "bench/cuda/timer.h"
#include "core/text.h"

namespace cadre::bench {
namespace {

/// A dtype's operands, and its dense product where one is wanted.
struct LayerOfType {
  std::unique_ptr<Layer> layer;
  DeviceBuffer dense_out;
  size_t dense_call = 0;  ///< its index among the timed calls
};

class Runner final : public CudaRunner {
 public:
  Runner() : no_dense_(dense_.open(timer_.stream())) {}

  std::string dense_library() const override { return has_dense() ? dense_.library() : no_dense_; }
  bool has_dense() const override { return dense_.available(); }
  int driver_version() const override {
    int version = 0;
    require(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
    return version;
  }
  double copy_rate() const override { return timer_.copy_rate(); }

  Status measure(const CaseGroup& group, int repeats,
                 std::vector<Measurement>* measurements) override {
    try {
      measure_or_throw(group, repeats, measurements);
    } catch (const std::exception& error) {
      return Status::internal(text(group.shape.name, ", ", op_of(group.pass), ": ", error.what()));
    }
    return {};
  }

  void* stream() const override { return timer_.stream(); }
  void trace_to(Trace* trace) override { trace_ = trace; }

  Status time_call(const TimedCall& timed, std::vector<Timing>* timings) override {
    try {
      time_or_throw(timed, timings);
    } catch (const std::exception& error) {
      return Status::internal(error.what());
    }
    return {};
  }

  Status measure_host_cost(std::vector<HostCost>* costs) override {
    try {
      *costs = bench::measure_host_cost(timer_.stream());
    } catch (const std::exception& error) {
      return Status::internal(text("host cost: ", error.what()));
    }
    return {};
  }

 private:
  using Call = std::function<void()>;

  void measure_or_throw(const CaseGroup& group, int repeats,
                        std::vector<Measurement>* measurements);
  void time_or_throw(const TimedCall& timed, std::vector<Timing>* timings);
  Timing time_alone(Condition condition, const Call& call, Flush flush) const;
  /// Of a layer's dense product, which is the same for every skew and every case: timed once.
  Times dense_alone(const CaseGroup& group, DType dtype, Condition condition, const Call& call);

  void note(Condition condition, const CaseGroup& group, std::string_view what,
            Trace::Clock::time_point start) const;

  Timer timer_;
  Trace* trace_ = nullptr;
  std::map<std::tuple<std::string, Pass, DType, Condition>, Times> dense_times_;
  DenseCublas dense_;
  std::string no_dense_;
  const std::string portable_name_ = portable_backend();
  Context context_{ContextOptions{.backend = "cuda"}};
  Context portable_{ContextOptions{.backend = portable_name_}};
};

Timing Runner::time_alone(Condition condition, const Call& call, Flush flush) const {
  Timing timing{.condition = condition};
  if (condition == Condition::kSustained) {
    timing.times = timer_.sustained(call, &timing.calls);
  } else {
    timing.times = timer_.rested(call, flush);
    timing.calls = kRestedCalls;
  }
  return timing;
}

void Runner::note(Condition condition, const CaseGroup& group, std::string_view what,
                  Trace::Clock::time_point start) const {
  if (trace_ == nullptr) return;
  trace_->add_until_now(std::string(name_of(condition)),
                        text(group.shape.name, ", skew ", group.skew, ": ", what), start);
}

Times Runner::dense_alone(const CaseGroup& group, DType dtype, Condition condition,
                          const Call& call) {
  const auto key = std::make_tuple(std::string(group.shape.name), group.pass, dtype, condition);
  const auto found = dense_times_.find(key);
  if (found != dense_times_.end()) return found->second;
  const auto start = Trace::Clock::now();
  dense_times_[key] = time_alone(condition, call, group.flush).times;
  note(condition, group, text("dense ", name_of(dtype)), start);
  return dense_times_[key];
}

void Runner::time_or_throw(const TimedCall& timed, std::vector<Timing>* timings) {
  // Random operands, since zeros would draw less power; the results are nobody's.
  std::vector<DeviceBuffer> buffers;
  std::vector<DenseProduct> products;
  const auto random = [&](int64_t elements) {
    buffers.emplace_back(static_cast<size_t>(elements) * size_of(timed.dtype));
    fill_random(buffers.back().get(), timed.dtype, elements, static_cast<uint32_t>(buffers.size()),
                1.0f);
    return buffers.back().get();
  };
  for (const TimedCall::Dense& dense : timed.dense) {
    if (!has_dense()) break;
    void* const a = random(dense.m * dense.k);
    void* const b = random(dense.n * dense.k);
    void* const d = random(dense.m * dense.n);
    products.push_back({a, b, d, dense.m, dense.n, dense.k, false, true, timed.dtype});
  }
  require(cudaDeviceSynchronize(), "the operands");
  const Call dense_call = [&] {
    for (const DenseProduct& product : products) dense_.multiply(product);
  };
  for (const Condition condition : timed.conditions) {
    if (condition != Condition::kMixed) {
      Timing timing = time_alone(condition, timed.call, Flush::kWrite);
      if (!products.empty()) timing.dense = time_alone(condition, dense_call, Flush::kWrite).times;
      timings->push_back(timing);
      continue;
    }
    std::vector<Call> calls = {timed.call};
    if (!products.empty()) calls.push_back(dense_call);
    const std::vector<Times> times = timer_.in_turn(calls, timed.repeats, Flush::kWrite);
    Timing timing{.condition = condition, .calls = timed.repeats, .times = times[0]};
    if (!products.empty()) timing.dense = times[1];
    timings->push_back(timing);
  }
}

void Runner::measure_or_throw(const CaseGroup& group, int repeats,
                              std::vector<Measurement>* measurements) {
  const bool with_dense = group.dense && has_dense();
  std::map<DType, LayerOfType> layers;
  std::vector<std::unique_ptr<Product>> products;
  std::vector<size_t> call_of_case;
  std::vector<Call> calls;

  for (const Case& wanted : group.cases) {
    LayerOfType& typed = layers[wanted.dtype];
    if (typed.layer == nullptr) {
      typed.layer = std::make_unique<Layer>(group.shape, group.skew, group.pass, wanted.dtype);
      if (with_dense) {
        const auto elements = static_cast<size_t>(typed.layer->dense_elements());
        typed.dense_out = DeviceBuffer(elements * size_of(wanted.dtype));
        const Checked checked = check_dense(*typed.layer, dense_, typed.dense_out, timer_.stream());
        if (!checked.passed()) {
          throw std::runtime_error(text("the dense product of cuBLAS is wrong at ", checked.where));
        }
        typed.dense_call = calls.size();
        calls.emplace_back([this, product = typed.layer->dense(typed.dense_out.get())] {
          dense_.multiply(product);
        });
      }
    }
    products.push_back(std::make_unique<Product>(
        *typed.layer, wanted, wanted.portable ? portable_ : context_, timer_.stream()));
    measurements->push_back({.kernel = products.back()->kernel(),
                             .check = products.back()->check(),
                             .used_groups = static_cast<double>(typed.layer->used_groups())});
    call_of_case.push_back(calls.size());
    calls.emplace_back([product = products.back().get()] { product->run(); });
  }

  for (const Condition condition : group.conditions) {
    if (condition == Condition::kMixed) continue;
    for (size_t i = 0; i < group.cases.size(); ++i) {
      const Case& wanted = group.cases[i];
      if (!wanted.alone) continue;
      const auto start = Trace::Clock::now();
      Timing timing = time_alone(condition, calls[call_of_case[i]], group.flush);
      note(condition, group, wanted.name, start);
      if (with_dense) {
        timing.dense =
            dense_alone(group, wanted.dtype, condition, calls[layers[wanted.dtype].dense_call]);
      }
      (*measurements)[i].timings.push_back(timing);
    }
  }
  if (!contains(group.conditions, Condition::kMixed)) return;

  const auto start = Trace::Clock::now();
  const std::vector<Times> times = timer_.in_turn(calls, repeats, group.flush);
  note(Condition::kMixed, group, text(op_of(group.pass), ", ", calls.size(), " calls in turn"),
       start);
  for (size_t i = 0; i < group.cases.size(); ++i) {
    const Case& wanted = group.cases[i];
    Timing timing{
        .condition = Condition::kMixed, .calls = repeats, .times = times[call_of_case[i]]};
    if (with_dense) timing.dense = times[layers[wanted.dtype].dense_call];
    if (wanted.baseline != Baseline::kNone) {
      timing.baseline = times[call_of_case[wanted.baseline_case]];
      const DType baseline_dtype = group.cases[wanted.baseline_case].dtype;
      if (with_dense && baseline_dtype != wanted.dtype) {
        timing.baseline_dense = times[layers[baseline_dtype].dense_call];
      }
    }
    (*measurements)[i].timings.push_back(timing);
  }
}

}  // namespace

Status CudaRunner::make(std::unique_ptr<CudaRunner>* runner) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return Status::unsupported(
        text("--device = cuda, but there is no GPU here: ",
             error == cudaSuccess ? "no device" : cudaGetErrorString(error)));
  }
  try {
    *runner = std::make_unique<Runner>();
  } catch (const std::exception& thrown) {
    return Status::internal(thrown.what());
  }
  return {};
}

}  // namespace cadre::bench
